// A missing wait shows as wrong bits where messages are late, and ranks that wait as they should
// never see any.

#include "distca/comm/late_messages_testing.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "distca/comm/thread_streams_testing.h"

namespace distca::testing {
namespace {

constexpr CommOptions kLatePatience{.timeout_s = 300, .grace_s = 1};
constexpr int kRounds = 6;
constexpr double kRight = 1 << kRounds;  // two ranks add what both have, in every round

/// The waits that are left out.
struct Forgotten {
  bool received = false, sent = false;
};

/// In every round, each rank adds what the other one has to what it has, and sends the sum from the
/// same memory in the next round. `give` does work where the device does it. What rank 0 has last.
double swap_and_add(const ThreadDevice& device, const std::function<void(int)>& use_stream,
                    const std::function<void(std::function<void()>)>& give,
                    const std::function<void()>& end, Forgotten forgotten) {
  struct Memory {
    double out = 1, in = 0;
  };
  std::array<Memory, 2> memory;
  run_ranks(
      2, kLatePatience,
      [&](Communicator& group) {
        use_stream(group.rank());
        Memory& mine = memory[group.rank()];
        std::vector<std::unique_ptr<PendingExchange>> open;
        for (int round = 0; round < kRounds; ++round) {
          const Message out{1 - group.rank(), 0, reinterpret_cast<std::byte*>(&mine.out),
                            sizeof(double)};
          const Message in{1 - group.rank(), 0, reinterpret_cast<std::byte*>(&mine.in),
                           sizeof(double)};
          open.push_back(group.exchange({&out, 1}, {&in, 1}, "swap"));
          if (!forgotten.received) open.back()->wait_received();
          give([&] { mine.in += mine.out; });
          if (!forgotten.sent && !forgotten.received) open.back()->wait();
          give([&] { mine.out = mine.in; });
        }
        for (const auto& exchange : open) exchange->wait();
      },
      device);
  end();
  return memory[0].out;
}

double on_host(const ThreadDevice& device, Forgotten forgotten) {
  return swap_and_add(
      device, [](int) {}, [](const std::function<void()>& work) { work(); }, [] {}, forgotten);
}

TEST(LateMessages, ranks_that_wait_see_no_wrong_bit) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    EXPECT_EQ(on_host(late_messages(seed), {}), kRight) << seed;
    EXPECT_EQ(on_host(late_messages(seed, 1), {}), kRight) << seed;
  }
}

TEST(LateMessages, a_wait_for_what_is_received_that_is_missing_shows) {
  // Two ranks that do not wait run apart: rank 0 may have been through before rank 1 sent anything.
  int wrong = 0;
  for (uint64_t seed = 0; seed < 50; ++seed)
    wrong += on_host(late_messages(seed, 1), {.received = true}) != kRight;
  EXPECT_GT(wrong, 45);
}

TEST(LateMessages, a_wait_for_what_is_sent_that_is_missing_shows) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 50; ++seed)
    wrong += on_host(late_messages(seed), {.sent = true}) != kRight;
  EXPECT_GT(wrong, 25);
}

/// With streams of threads: `change` makes the device a wrong one.
double on_streams(uint64_t seed, const std::function<void(ThreadDevice&)>& change,
                  Forgotten forgotten = {}) {
  constexpr int64_t kMostUs = 1000;
  ThreadStreams streams(2, std::chrono::microseconds(0));
  ThreadDevice device = streams.device(0);
  change(device);
  return swap_and_add(
      with_random_delays(device, streams.streams(), seed, kMostUs),
      [&](int rank) { streams.use_stream(rank); },
      [&](std::function<void()> work) { streams.give(std::move(work)); }, [&] { streams.end(); },
      forgotten);
}

constexpr uint64_t kSeeds = 30;

TEST(LateMessages, streams_that_follow_each_other_give_no_wrong_bit_however_late_they_are) {
  for (uint64_t seed = 0; seed < 3 * kSeeds; ++seed)
    EXPECT_EQ(on_streams(seed, [](ThreadDevice&) {}), kRight) << seed;
}

int seeds_with_wrong_bits(const std::function<void(ThreadDevice&)>& change,
                          Forgotten forgotten = {}) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    wrong += on_streams(seed, change, forgotten) != kRight;
  return wrong;
}

TEST(LateMessages, streams_that_do_not_follow_the_copies_show) {
  EXPECT_GT(
      seeds_with_wrong_bits([](ThreadDevice& device) { device.follow = [](const DeviceMark&) {}; }),
      0);
}

/// Returns a change after which copies do not wait for one of the two sides.
std::function<void(ThreadDevice&)> without_mark(bool of_sender) {
  return [of_sender](ThreadDevice& device) {
    device.copy = [copy = device.copy, of_sender](std::byte* to, const std::byte* from,
                                                  int64_t bytes, const DeviceMark& sender,
                                                  const DeviceMark& receiver) {
      return copy(to, from, bytes, of_sender ? nullptr : sender, of_sender ? receiver : nullptr);
    };
  };
}

TEST(LateMessages, copies_that_do_not_follow_the_sender_show) {
  EXPECT_GT(seeds_with_wrong_bits(without_mark(true)), 0);
}

TEST(LateMessages, copies_that_do_not_follow_the_receiver_show) {
  EXPECT_GT(seeds_with_wrong_bits(without_mark(false)), 0);
}

TEST(LateMessages, memory_that_is_written_before_its_copy_was_sent_shows) {
  EXPECT_GT(seeds_with_wrong_bits([](ThreadDevice&) {}, {.sent = true}), 0);
}

}  // namespace
}  // namespace distca::testing
