#include "bench/one_byte_messages.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "bench/exchanges_alone.h"
#include "bench/namespaces.h"
#include "distca/comm/thread_group.h"
#include "distca/program/program_testing.h"

namespace distca::bench {
namespace {

/// The receive buffer of a rank after one exchange of three bytes.
std::array<char, 3> received(Communicator& group) {
  std::array<char, 3> out{'a', 'b', 'c'}, in{'x', 'y', 'z'};
  const int peer = 1 - group.rank();
  const Message send{
      .peer = peer, .tag = 1, .data = reinterpret_cast<std::byte*>(out.data()), .bytes = 3};
  const Message receive{
      .peer = peer, .tag = 1, .data = reinterpret_cast<std::byte*>(in.data()), .bytes = 3};
  group.exchange({&send, 1}, {&receive, 1}, "three bytes")->wait();
  return in;
}

TEST(OneByteMessages, keep_what_lay_behind_the_first_byte) {
  run_ranks(2, {}, [](Communicator& comm) {
    OneByteMessages group(comm);
    EXPECT_EQ(received(group), (std::array<char, 3>{'a', 'b', 'c'}));
    group.cut(true);
    EXPECT_EQ(received(group), (std::array<char, 3>{'a', 'y', 'z'}));
    group.cut(false);
    EXPECT_EQ(received(group), (std::array<char, 3>{'a', 'b', 'c'}));
  });
}

/// Counts what is sent through it.
class CountedMessages : public Communicator {
 public:
  explicit CountedMessages(Communicator& whole) : whole_(whole) {}
  int rank() const override { return whole_.rank(); }
  int size() const override { return whole_.size(); }
  void set_step(int64_t step) override { whole_.set_step(step); }
  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) override {
    for (const Message& message : sends) bytes += message.bytes;
    return whole_.exchange(sends, receives, operation);
  }
  int64_t bytes = 0;

 private:
  Communicator& whole_;
};

TEST(ExchangesAlone, send_every_message_of_the_program_each_time) {
  run_ranks(2, {}, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    Program program{.ops = {},
                    .buffers = {{BufferRole::kQkvOut, 192}, {BufferRole::kQkvIn, 192}},
                    .exchanges = {}};
    testing::add_exchange(program, {.kind = OpKind::kDispatch, .tag = 1, .out = 0, .in = 1},
                          {{peer, 100}}, {{peer, 100}});
    testing::add_exchange(
        program,
        {.kind = OpKind::kCombine, .wait_for = {0}, .wait_sends = {0}, .tag = 2, .out = 0, .in = 1},
        {{peer, 7}}, {{peer, 7}});
    CountedMessages group(comm);
    ExchangesAlone alone(group, program);
    OpTimes times;
    for (int i = 0; i < 3; ++i) alone.play_once(&times);
    EXPECT_EQ(group.bytes, 3 * 107);
  });
}

TEST(TokenBucket, lets_whole_segments_pass_at_any_rate) {
  for (const double rate : {1.0, 25.0, 60.0, 1000.0}) {
    const TokenBucket bucket = token_bucket(rate);
    EXPECT_EQ(bucket.rate, static_cast<int64_t>(rate * 1e6));
    EXPECT_GT(bucket.burst, 64 << 10);
    EXPECT_GE(bucket.burst, bucket.rate / 1000);
    EXPECT_GT(bucket.limit, bucket.burst);
  }
}

TEST(RunProgram, gives_code_and_output) {
  const Ran ran = run_program("echo out; echo err >&2; exit 3");
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_EQ(ran.output, "out\nerr");
  EXPECT_EQ(run_program("no-such-program-anywhere").exit_code, 127);
}

}  // namespace
}  // namespace distca::bench
