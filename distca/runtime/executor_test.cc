#include "distca/runtime/executor.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>

#include "distca/base/error.h"
#include "distca/base/random.h"
#include "distca/program/program_testing.h"
#include "distca/runtime/executor_testing.h"
#include "distca/runtime/out_of_device_memory.h"

namespace distca {
namespace {

/// Any valid program: operations know themselves by their layer, exchanges also by their tag.
Program random_program(Random& random) {
  Program program;
  const int num_ops = 1 + static_cast<int>(random.below(40));
  std::vector<int32_t> exchanges;
  for (int i = 0; i < num_ops; ++i) {
    Op op{.kind = OpKind::kCoreAttention, .layer = i};
    for (int dep = 0; dep < i; ++dep) {
      if (random.below(6) == 0) op.wait_for.push_back(dep);
    }
    for (const int32_t exchange : exchanges) {
      if (random.below(6) == 0) op.wait_sends.push_back(exchange);
    }
    if (random.below(2) == 0) {
      op.kind = random.below(2) == 0 ? OpKind::kDispatch : OpKind::kCombine;
      op.tag = static_cast<uint32_t>(i) + 1;
      std::vector<testing::PeerBytes> sends, receives;
      if (random.below(3) > 0) sends = {{1, 64}, {4, 8}};
      if (random.below(3) > 0) receives = {{2, 24}};
      testing::add_exchange(program, op, sends, receives);
      exchanges.push_back(i);
    } else {
      program.ops.push_back(op);
    }
  }
  return program;
}

/// Holds every call against what the program says.
class CheckingPlayer final : public OpPlayer {
 public:
  explicit CheckingPlayer(const Program& program) : program_(program) {}

  void play(const Op& op) override {
    EXPECT_EQ(op.stream, Stream::kCompute);
    begin(op);
  }
  void pack(const Op& op) override {
    EXPECT_EQ(op.stream, Stream::kComm);
    begin(op);
    packed_.insert(op.layer);
  }
  void issue(const Op& op) override {
    EXPECT_TRUE(packed_.contains(op.layer));
    EXPECT_TRUE(issued_.insert(op.layer).second);
  }
  void wait(const Op& op) override {
    EXPECT_TRUE(issued_.contains(op.layer));
    EXPECT_TRUE(waited_.insert(op.layer).second);
  }
  void land(const Op& op) override {
    EXPECT_TRUE(waited_.contains(op.layer));
    EXPECT_TRUE(landed_.insert(op.layer).second);
  }
  void wait_sent(const Op& op) override {
    EXPECT_TRUE(issued_.contains(op.layer));
    EXPECT_TRUE(sent_.insert(op.layer).second);
  }

  void expect_all_done() const {
    std::set<int> exchanges;
    for (const Op& op : program_.ops) {
      if (op.stream == Stream::kComm) exchanges.insert(op.layer);
    }
    EXPECT_EQ(begun_, static_cast<int>(program_.ops.size()));
    EXPECT_EQ(issued_, exchanges);
    EXPECT_EQ(landed_, exchanges);
    EXPECT_EQ(sent_, exchanges);
  }

 private:
  /// In the order of the list, each once; by now exactly what this or an earlier operation needs
  /// has been waited for, nothing else.
  void begin(const Op& op) {
    EXPECT_EQ(op.layer, begun_);
    ++begun_;
    for (const int32_t dep : op.wait_for) {
      if (program_.ops[dep].stream == Stream::kComm) needed_.insert(dep);
    }
    needed_sent_.insert(op.wait_sends.begin(), op.wait_sends.end());
    EXPECT_EQ(waited_, needed_);
    EXPECT_EQ(landed_, needed_);
    EXPECT_EQ(sent_, needed_sent_);
  }

  const Program& program_;
  int begun_ = 0;
  std::set<int> packed_, issued_, waited_, landed_, sent_;
  std::set<int> needed_, needed_sent_;
};

TEST(Executor, plays_any_program_in_order_and_waits_only_for_what_the_next_operation_needs) {
  Random random(11);
  for (int trial = 0; trial < 300; ++trial) {
    const Program program = random_program(random);
    CheckingPlayer player(program);
    OpTimes times;
    play(program, player, &times);
    player.expect_all_done();
    if (HasFailure()) FAIL() << "trial " << trial << "\n" << print_program(program);
  }
}

TEST(Executor, an_operation_that_needs_what_comes_after_it_is_a_check) {
  IdlePlayer player;
  OpTimes times;
  for (const int32_t dep : {0, 1, -1}) {
    Program program;
    program.ops = {Op{.wait_for = {dep}}};
    EXPECT_THROW(play(program, player, &times), CheckFailure) << dep;
    program.ops = {Op{.wait_sends = {dep}}};
    EXPECT_THROW(play(program, player, &times), CheckFailure) << dep;
  }
}

TEST(Executor, what_a_player_throws_ends_the_program_there) {
  class Thrower : public IdlePlayer {
   public:
    void play(const Op& op) override {
      ++played;
      if (op.layer == 1) throw std::out_of_range("mine");
    }
    int played = 0;
  } player;
  Program program;
  program.ops = {Op{.layer = 0}, Op{.layer = 1}, Op{.layer = 2}};
  OpTimes times;
  EXPECT_THROW(play(program, player, &times), std::out_of_range);
  EXPECT_EQ(player.played, 2);
}

TEST(Executor, time_goes_to_the_kind_pass_and_part_that_took_it) {
  class Sleeper : public IdlePlayer {
   public:
    void play(const Op&) override { sleep_ms(2); }
    void wait(const Op&) override { sleep_ms(5); }
    void wait_sent(const Op&) override { sleep_ms(7); }
    static void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
  } player;
  Program program;
  program.ops = {Op{.kind = OpKind::kPreAttention},
                 Op{.kind = OpKind::kDispatch, .pass = Pass::kBackward, .stream = Stream::kComm}};
  OpTimes times;
  play(program, player, &times);
  play(program, player, &times);  // adds up
  EXPECT_GE(times.of(OpKind::kPreAttention, Pass::kForward, OpPart::kPlay), 0.004);
  EXPECT_GE(times.of(OpKind::kDispatch, Pass::kBackward, OpPart::kWait), 0.024);
  EXPECT_EQ(times.of(OpKind::kPreAttention, Pass::kBackward), 0);
  EXPECT_EQ(times.of(OpKind::kDispatch, Pass::kForward), 0);
  EXPECT_EQ(times.of(OpKind::kDispatch, Pass::kBackward, OpPart::kPlay), 0);
  EXPECT_EQ(times.of(OpPart::kWait), times.of(OpKind::kDispatch, Pass::kBackward, OpPart::kWait));
  EXPECT_GE(times.of(OpKind::kDispatch), times.of(OpPart::kWait));
  EXPECT_LT(times.processor_of(OpKind::kDispatch), times.of(OpKind::kDispatch));
}

TEST(Executor, every_exchange_with_messages_flies_once_from_its_post_to_the_end_of_its_wait) {
  Random random(12);
  for (int trial = 0; trial < 100; ++trial) {
    const Program program = random_program(random);
    CheckingPlayer player(program);
    OpTimes times;
    TraceRecorder recorder;
    recorder.set_step(6);
    play(program, player, &times, &recorder);
    std::map<std::pair<TraceKind, int>, std::vector<TraceEvent>> events;  // [kind, operation]
    for (const TraceEvent& event : recorder.events()) {
      EXPECT_EQ(event.step, 6);
      EXPECT_EQ(event.name, describe(program.ops[event.layer]));
      EXPECT_LE(event.begin_s, event.end_s);
      events[{event.kind, event.layer}].push_back(event);
    }
    for (const Op& op : program.ops) {
      const bool computes = op.stream == Stream::kCompute;
      EXPECT_EQ((events[{TraceKind::kCompute, op.layer}].size()), computes ? 1u : 0u);
      const auto& flights = events[{TraceKind::kFlight, op.layer}];
      const MessageList &sends = program.sends(op), &receives = program.receives(op);
      const bool speaks = !sends.empty() || !receives.empty();
      ASSERT_EQ(flights.size(), speaks ? 1u : 0u);
      if (!speaks) continue;
      const TraceEvent& flight = flights[0];
      EXPECT_EQ(flight.tag, op.tag);
      EXPECT_EQ(flight.bytes, sends.empty() ? 0 : 72);
      EXPECT_EQ(flight.received_bytes, receives.empty() ? 0 : 24);
      EXPECT_EQ(flight.from, receives.empty() ? std::vector<int>{} : std::vector<int>{2});
      EXPECT_EQ(flight.to, sends.empty() ? std::vector<int>{} : std::vector<int>({1, 4}));
      EXPECT_EQ(flight.begin_s, (events[{TraceKind::kLaunch, op.layer}].at(0).begin_s));
      const auto& waits = events[{TraceKind::kWait, op.layer}];
      const auto last = std::find_if(waits.begin(), waits.end(), [&](const TraceEvent& wait) {
        return wait.end_s == flight.end_s;
      });
      ASSERT_NE(last, waits.end());
      EXPECT_EQ(last->from, flight.from);
    }
  }
}

TEST(Executor, with_a_devices_clock_times_and_events_are_when_the_device_did_it) {
  /// The n-th mark is reached at 1000 + n^2 seconds.
  class SquareClock final : public OpClock {
   public:
    size_t mark() override { return marks_++; }
    std::vector<double> seconds() override {
      std::vector<double> seconds;
      for (size_t i = 0; i < marks_; ++i) seconds.push_back(1000 + static_cast<double>(i * i));
      return seconds;
    }

   private:
    size_t marks_ = 0;
  } clock;
  Program program;
  program.ops = {Op{.kind = OpKind::kPreAttention}};
  testing::add_exchange(program, {.kind = OpKind::kDispatch}, {}, {{2, 24}});
  program.ops.push_back({.kind = OpKind::kCoreAttention, .wait_for = {1}});
  IdlePlayer player;
  OpTimes times;
  TraceRecorder recorder;
  play(program, player, &times, &recorder, &clock);
  // Marks: pre_attention 0 1, pack 2 3, issue 4 5, wait 6 7, land 8 9, core_attention 10 11,
  // wait_sent 12 13.
  EXPECT_EQ(times.of(OpKind::kPreAttention, Pass::kForward, OpPart::kPlay), 1);
  EXPECT_EQ(times.of(OpKind::kDispatch, Pass::kForward, OpPart::kPack), 5);
  EXPECT_EQ(times.of(OpKind::kDispatch, Pass::kForward, OpPart::kWait), 13 + 25);
  EXPECT_EQ(times.of(OpKind::kCoreAttention, Pass::kForward, OpPart::kPlay), 21);
  const auto span = [&](TraceKind kind) {
    const auto event = std::find_if(recorder.events().begin(), recorder.events().end(),
                                    [kind](const TraceEvent& one) { return one.kind == kind; });
    return std::pair(event->begin_s, event->end_s);
  };
  EXPECT_EQ(span(TraceKind::kCompute), std::pair(1000.0, 1001.0));
  EXPECT_EQ(span(TraceKind::kFlight), std::pair(1016.0, 1049.0));
  EXPECT_EQ(recorder.events().size(), 5u);  // two operations, launch, wait, flight
}

/// A device that has no memory left for one operation.
class FullDevice final : public IdlePlayer {
 public:
  void play(const Op& op) override {
    TORCH_CHECK_WITH(OutOfMemoryError, op.layer != 2,
                     "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
                     "of 79.10 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this "
                     "process has 78.10 GiB memory in use.");
  }
};

TEST(Executor, names_the_operation_for_which_a_device_has_no_memory) {
  Program program;
  for (int layer = 0; layer < 4; ++layer) {
    program.ops.push_back(
        {.kind = OpKind::kPostAttention, .pass = Pass::kBackward, .layer = layer, .nano_batch = 1});
  }
  FullDevice device;
  OpTimes times;
  try {
    play(program, device, &times);
    FAIL() << "it has played all";
  } catch (const OutOfDeviceMemory& error) {
    EXPECT_STREQ(error.what(), (describe(program.ops[2]) +
                                " (CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
                                "total capacity of 79.10 GiB of which 1.00 GiB is free)")
                                   .c_str());
  }
}

}  // namespace
}  // namespace distca
