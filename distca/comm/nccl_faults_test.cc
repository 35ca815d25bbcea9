// What goes wrong with a group that talks through NCCL, over its stand-in: who is named, and that
// every rank ends. A hundred rounds each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <latch>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/nccl_group.h"
#include "distca/comm/nccl_testing.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kRounds = 100;
constexpr int kAtOnce = 34;  // most of a round is waiting
constexpr CommOptions kHasty{.timeout_s = 1, .grace_s = 1, .startup_timeout_s = 20};

// A failure that is seen at once is judged within three heartbeats, of a tenth of the timeout each.
constexpr CommOptions kPatient{.timeout_s = 2, .grace_s = 1, .startup_timeout_s = 20};

/// Both ranks of each round, until all have ended; what their errors said. A rank that throws
/// anything but an Error has ended as it wants to.
std::vector<std::string> play_rounds(const std::function<void(Communicator&)>& body,
                                     const CommOptions& options = kHasty, int rounds = kRounds) {
  std::mutex mutex;
  std::vector<std::string> said;
  const auto play = [&] {
    run_with_store(2, [&](uint16_t port, int rank) {
      try {
        body(*make_nccl_group(at_port(port, rank, 2), options, nccl_standin(),
                              host_nccl_device(nccl_standin())));
      } catch (const Error& error) {
        std::lock_guard lock(mutex);
        said.emplace_back(error.what());
      } catch (const std::out_of_range&) {
        // Its own.
      }
    });
  };
  for (int begun = 0; begun < rounds; begun += kAtOnce) {
    std::vector<std::jthread> threads;
    for (int i = begun; i < std::min(begun + kAtOnce, rounds); ++i) threads.emplace_back(play);
  }
  return said;
}

/// Eight bytes each way, three times.
void swap_bytes_thrice(Communicator& group) {
  group.set_step(4);
  const int peer = 1 - group.rank();
  for (const char* operation : {"dispatch", "combine", "sum"}) {
    std::vector<std::byte> out(8), in(8);
    const Message send{peer, 0, out.data(), 8}, receive{peer, 0, in.data(), 8};
    group.exchange({&send, 1}, {&receive, 1}, operation)->wait();
  }
}

TEST(NcclFaults, a_group_that_hangs_on_the_device_ends_by_the_deadline_with_both_ranks_named) {
  const StandinFaults faults("hang,rank=1,group=2");
  const std::vector<std::string> said = play_rounds(swap_bytes_thrice);
  EXPECT_EQ(said.size(), 2u * kRounds);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 1"), HasSubstr("rank 0"), HasSubstr(" waited 1."),
                               HasSubstr("step 4, combine"))));
}

TEST(NcclFaults, an_error_that_nccl_reports_is_said_by_both_ranks) {
  const StandinFaults faults("error,rank=1,group=2");
  const Stopwatch watch;
  const std::vector<std::string> said = play_rounds(swap_bytes_thrice, kPatient);
  EXPECT_EQ(said.size(), 2u * kRounds);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("NCCL: unhandled system error (a fault that a test asked "
                                         "for); rank 1 lost its connection to rank 0 in step 4, "
                                         "combine"))));
  EXPECT_LT(watch.seconds(), (1 + kRounds / kAtOnce) * kPatient.timeout_s);
}

TEST(NcclFaults, a_call_that_fails_is_said) {
  const StandinFaults faults("refuse,rank=0,group=3");
  const std::vector<std::string> said = play_rounds(swap_bytes_thrice, kPatient, kAtOnce);
  EXPECT_EQ(said.size(), 2u * kAtOnce);
  EXPECT_THAT(said, Each(HasSubstr("NCCL: ncclGroupEnd: internal error; rank 0 lost its "
                                   "connection to rank 1 in step 4, sum")));
}

TEST(NcclFaults, a_call_that_does_not_return_is_waited_for_no_longer_than_the_timeout) {
  const StandinFaults faults("block,rank=0,group=1");
  const std::vector<std::string> said = play_rounds(swap_bytes_thrice, kHasty, kAtOnce);
  EXPECT_EQ(said.size(), 2u * kAtOnce);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr(" waited 1."),
                               HasSubstr("step 4, dispatch"))));
}

TEST(NcclFaults, sizes_that_do_not_match_are_an_error_of_both_ranks) {
  const std::vector<std::string> said = play_rounds(
      [](Communicator& group) {
        const int64_t bytes = group.rank() == 0 ? 8 : 4;
        std::vector<std::byte> memory(8);
        const Message one{1 - group.rank(), 0, memory.data(), bytes};
        group.rank() == 0 ? group.exchange({&one, 1}, {}, "sum")->wait()
                          : group.exchange({}, {&one, 1}, "sum")->wait();
      },
      kPatient);
  EXPECT_EQ(said.size(), 2u * kRounds);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("NCCL: invalid usage (rank "), HasSubstr("in sum"))));
}

/// A tag says nothing on the wire: exchanges in another order on the other rank do not fit.
TEST(NcclFaults, exchanges_in_another_order_are_found_by_their_sizes) {
  const std::vector<std::string> said = play_rounds(
      [](Communicator& group) {
        std::vector<std::byte> memory(8);
        std::vector<std::unique_ptr<PendingExchange>> pending;
        for (const uint32_t tag : {1u, 2u}) {
          const uint32_t own = group.rank() == 0 ? tag : 3 - tag;
          const Message one{1 - group.rank(), own, memory.data(), static_cast<int64_t>(own)};
          pending.push_back(group.rank() == 0 ? group.exchange({&one, 1}, {}, "sum")
                                              : group.exchange({}, {&one, 1}, "sum"));
        }
        pending.back()->wait();
      },
      kPatient);
  EXPECT_EQ(said.size(), 2u * kRounds);
  EXPECT_THAT(said, Each(HasSubstr("NCCL: invalid usage (rank ")));
}

TEST(NcclFaults, a_rank_that_computes_beyond_the_deadline_is_named_with_its_step) {
  const auto body = [](Communicator& group, std::latch& over) {
    group.set_step(4);
    std::byte byte{};
    if (group.rank() == 1) {
      group.exchange({}, {}, "forward layer 1 core_attention")->wait();
      over.wait();
      return;
    }
    const Message in{1, 0, &byte, 1};
    try {
      group.exchange({}, {&in, 1}, "forward layer 1 dispatch")->wait();
    } catch (const Error&) {
      over.count_down();
      throw;
    }
  };
  for (int played = 0; played < kRounds; played += kAtOnce) {
    std::latch over(kAtOnce);
    const std::vector<std::string> said =
        play_rounds([&](Communicator& group) { body(group, over); }, kHasty, kAtOnce);
    EXPECT_EQ(said.size(), kAtOnce);
    EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 1 is alive but behind (at step 4, forward layer 1 "
                                           "core_attention); rank 0 waited 1."),
                                 HasSubstr("for it in step 4, forward layer 1 dispatch"))));
  }
}

TEST(NcclFaults, a_rank_that_fails_is_named_before_the_deadline) {
  const Stopwatch watch;
  const std::vector<std::string> said = play_rounds(
      [](Communicator& group) {
        std::byte byte{};
        const Message in{1, 0, &byte, 1};
        if (group.rank() == 1) throw std::out_of_range("mine");
        group.exchange({}, {&in, 1}, "combine")->wait();
      },
      kPatient);
  EXPECT_EQ(said.size(), kRounds);
  EXPECT_THAT(said, Each(HasSubstr("rank 1 ended with an error")));
  EXPECT_LT(watch.seconds(), (1 + kRounds / kAtOnce) * kPatient.timeout_s);
}

TEST(NcclFaults, a_rank_that_does_not_connect_ends_the_start_by_its_deadline) {
  const StandinFaults faults("start,rank=1");
  const std::vector<std::string> said =
      play_rounds([](Communicator&) { FAIL() << "connected"; },
                  {.timeout_s = 1, .grace_s = 1, .startup_timeout_s = 1}, 1);
  EXPECT_EQ(said.size(), 2u);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 1"), HasSubstr("connecting all ranks"))));
}

TEST(NcclFaults, a_rank_that_is_done_waits_for_the_others_without_an_error) {
  std::atomic<int> done = 0;
  const std::vector<std::string> said = play_rounds(
      [&](Communicator& group) {
        swap_bytes_thrice(group);
        if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::duration<double>(1.5));
        ++done;
      },
      {.timeout_s = 0.5, .grace_s = 1}, kAtOnce);
  EXPECT_THAT(said, testing::IsEmpty());
  EXPECT_EQ(done, 2 * kAtOnce);
}

}  // namespace
}  // namespace distca
