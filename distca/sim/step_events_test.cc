#include "distca/sim/step_events.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/program/program_testing.h"

namespace distca::testing {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMicrosecond = 1'000'000;  // picoseconds

int64_t ps(double seconds) { return std::llround(seconds * 1e12); }
int64_t length_ps(const TraceEvent& event) { return ps(event.end_s) - ps(event.begin_s); }

/// Computing takes op.flops nanoseconds and 1 us; communications cost what `rates` say.
RatePrices prices(const ThreadRates& rates = {}) {
  return RatePrices([](int, const Op& op) { return 1e-9 * op.flops + 1e-6; }, rates);
}

constexpr ThreadRates kRates{
    .issue_ps = 3 * kMicrosecond, .copy_bytes_per_s = 10'000'000, .core_bytes_per_s = 10'000'000};

/// "compute 0 5", from and to in microseconds.
std::vector<std::string> shown(const std::vector<TraceEvent>& events) {
  std::vector<std::string> texts;
  for (const TraceEvent& event : events) {
    constexpr std::array kKinds = {"step", "compute", "copy", "launch", "wait", "flight"};
    texts.push_back(fmt::format("{} {} {}", kKinds[static_cast<size_t>(event.kind)],
                                ps(event.begin_s) / kMicrosecond, ps(event.end_s) / kMicrosecond));
  }
  return texts;
}

/// Rank 0 computes 5 us and returns 20 bytes; rank 1 computes 7 us, then waits for them, and
/// computes 3 us.
std::vector<Program> one_return() {
  std::vector<Program> programs(2);
  programs[1].server = 1;
  const auto computing = [](int64_t us, std::vector<int32_t> wait_for) {
    return Op{.kind = OpKind::kPostAttention,
              .wait_for = std::move(wait_for),
              .flops = 1e3 * static_cast<double>(us - 1)};
  };
  const Op combine{.kind = OpKind::kCombine, .layer = 2, .nano_batch = 1, .tag = 9};
  programs[0].ops.push_back(computing(5, {}));
  add_exchange(programs[0], combine, {{1, 20}}, {});
  add_exchange(programs[1], combine, {}, {{0, 20}});
  programs[1].ops.push_back(computing(7, {}));
  programs[1].ops.push_back(computing(3, {0}));
  return programs;
}

constexpr Wire kWire{.between = {.bytes_per_s = 1'000'000}};  // one byte a microsecond

TEST(StepEvents, are_those_of_the_thread_and_of_messages_until_they_are_there) {
  const std::vector<Program> programs = one_return();
  const RatePrices by = prices(kRates);
  const TimedStep step = timed_step(programs, by, kWire);
  EXPECT_EQ(step.length_ps, 35 * kMicrosecond);
  // It has sent at 10, the network's threads take 2 us of the core, and it ends at 30.
  EXPECT_THAT(shown(step_events(programs, 0, step, by, 4)),
              ElementsAre("step 0 35", "compute 0 5", "copy 5 7", "launch 7 10", "flight 7 30",
                          "wait 12 30", "wait 30 35"));
  const std::vector<TraceEvent> receives = step_events(programs, 1, step, by, 4);
  EXPECT_THAT(shown(receives), ElementsAre("step 0 35", "launch 0 3", "flight 0 30", "compute 5 12",
                                           "wait 12 30", "copy 30 32", "compute 32 35"));
  for (const TraceEvent& event : receives) EXPECT_EQ(event.step, 4);
  const TraceEvent& wait = receives[4];
  EXPECT_EQ(wait.name, "forward layer 2 combine of nano-batch 1");
  EXPECT_THAT(wait.from, ElementsAre(0));
  EXPECT_THAT(wait.to, ElementsAre());
  EXPECT_EQ(wait.tag, 9u);
  EXPECT_EQ(wait.received_bytes, 20);
}

TEST(StepEvents, the_wait_for_the_last_rank_has_a_name_and_awaits_nobody) {
  const std::vector<Program> programs = one_return();
  const TimedStep step = timed_step(programs, prices(), kWire);
  const TraceEvent last = step_events(programs, 0, step, prices(), 1).back();
  EXPECT_EQ(last.name, kEndOfStep);
  EXPECT_EQ(length_ps(last), 3 * kMicrosecond);
  EXPECT_THAT(last.from, ElementsAre());
  EXPECT_THAT(last.to, ElementsAre());
}

/// With in_order, who sends may wait for its turn behind another rank's messages.
TEST(StepEvents, a_send_that_waits_for_its_turn_waits_for_its_receiver) {
  std::vector<Program> programs(3);
  for (int rank = 0; rank < 3; ++rank) programs[static_cast<size_t>(rank)].server = rank;
  const auto tagged = [](uint32_t tag) { return Op{.kind = OpKind::kDispatch, .tag = tag}; };
  add_exchange(programs[0], tagged(1), {{1, 10}}, {});
  add_exchange(programs[0], tagged(2), {{2, 10}}, {});
  programs[1].ops.push_back({.kind = OpKind::kPostAttention, .flops = 99e3});
  add_exchange(programs[1], tagged(1), {}, {{0, 10}});
  add_exchange(programs[2], tagged(2), {}, {{0, 10}});
  Wire wire = kWire;
  wire.in_order = true;
  const TimedStep step = timed_step(programs, prices(), wire);
  int64_t waited = 0;
  for (const TraceEvent& event : step_events(programs, 0, step, prices(), 1)) {
    if (event.kind != TraceKind::kWait) continue;
    waited += length_ps(event);
    EXPECT_THAT(event.to, ::testing::SizeIs(1));
  }
  EXPECT_EQ(waited, 120 * kMicrosecond);
  EXPECT_EQ(waited, step.length_ps);
}

TEST(StepEvents, other_prices_than_those_of_the_step_are_a_check) {
  const std::vector<Program> programs = one_return();
  const TimedStep step = timed_step(programs, prices(kRates), kWire);
  EXPECT_THROW(step_events(programs, 0, step, prices(), 1), CheckFailure);
}

/// Programs of every overlap, with servers, split layers and sums of gradients, and their wires.
struct Case {
  std::vector<Program> programs;
  Wire wire;
};

std::vector<Case> cases() {
  std::vector<Case> made;
  for (const OverlapName& mode : kOverlaps) {
    for (const bool divides : {false, true}) {
      Style style{.overlap = mode.overlap, .redispatched = divides};
      if (divides) {
        style.tensor = 2;
      } else {
        style.gradients = {.bucket_elements = 400, .distributed_optimizer = true};
      }
      Wire wire{.inside = {.latency_ps = kMicrosecond, .bytes_per_s = 1'000'000'000},
                .between = {.latency_ps = 5 * kMicrosecond, .bytes_per_s = 100'000'000},
                .ranks_per_node = 2,
                .in_order = divides};
      made.push_back(
          {programs_of(plan_step({{900, 200}, {500, 700}, {40}}, pool(2, 1, true)), style), wire});
    }
  }
  return made;
}

/// How often an operation's name stands in the events of a kind.
std::map<std::string, int> names(const std::vector<TraceEvent>& events, TraceKind kind) {
  std::map<std::string, int> counts;
  for (const TraceEvent& event : events) {
    if (event.kind == kind && event.name != kEndOfStep) ++counts[event.name];
  }
  return counts;
}

TEST(StepEvents, of_a_rank_are_those_of_its_program) {
  for (const Case& one : cases()) {
    const TimedStep step = timed_step(one.programs, prices(kRates), one.wire);
    for (size_t i = 0; i < one.programs.size(); ++i) {
      const Program& program = one.programs[i];
      std::map<std::string, int> computes, launches, flights;
      for (const Op& op : program.ops) {
        if (op.stream == Stream::kCompute) ++computes[describe(op)];
        if (program.sends(op).empty() && program.receives(op).empty()) continue;
        ++launches[describe(op)];
        ++flights[describe(op)];
      }
      const std::vector<TraceEvent> events = step_events(one.programs, i, step, prices(kRates), 1);
      EXPECT_EQ(names(events, TraceKind::kCompute), computes);
      EXPECT_EQ(names(events, TraceKind::kLaunch), launches);
      EXPECT_EQ(names(events, TraceKind::kFlight), flights);
    }
  }
}

TEST(StepEvents, add_up_to_what_the_player_says_and_never_overlap) {
  for (const Case& one : cases()) {
    const TimedStep step = timed_step(one.programs, prices(kRates), one.wire);
    for (size_t i = 0; i < one.programs.size(); ++i) {
      std::map<TraceKind, int64_t> sums;
      int64_t end_ps = 0, behind_ps = 0;
      for (const TraceEvent& event : step_events(one.programs, i, step, prices(kRates), 1)) {
        if (event.kind == TraceKind::kFlight) {
          EXPECT_LE(ps(event.end_s), step.ranks[i].end_ps) << event.name;
          continue;
        }
        (event.name == kEndOfStep ? behind_ps : sums[event.kind]) += length_ps(event);
        if (event.kind == TraceKind::kStep) continue;
        EXPECT_GE(ps(event.begin_s), end_ps) << event.name;
        end_ps = ps(event.end_s);
      }
      const RankTime& time = step.ranks[i];
      EXPECT_EQ(sums[TraceKind::kStep], step.length_ps);
      EXPECT_EQ(sums[TraceKind::kCompute], time.computed_ps);
      EXPECT_EQ(sums[TraceKind::kCopy], time.copied_ps);
      EXPECT_EQ(sums[TraceKind::kLaunch], time.issued_ps);
      EXPECT_EQ(sums[TraceKind::kWait], time.late_ps + time.exposed_ps);
      EXPECT_EQ(behind_ps, step.length_ps - time.end_ps);
      EXPECT_GT(time.copied_ps + time.issued_ps, 0);
    }
  }
}

}  // namespace
}  // namespace distca::testing
