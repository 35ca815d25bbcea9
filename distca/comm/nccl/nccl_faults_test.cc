// Faults of a group that talks through NCCL or its stand-in (nccl_testing.h): who is named, and
// that every rank ends. A hundred rounds each over the stand-in, few over NCCL, which takes seconds
// to connect.

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
#include "distca/comm/nccl/nccl_testing.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kFaultRounds = 100;
constexpr int kAtOnce = 34;  // most of a round is waiting
constexpr int kRealRounds = 3;

// A wait of hasty()'s seconds; on a busy machine it is noticed later.
constexpr const char* kWaited = " waited ([3-9]|[1-9][0-9]+)\\.";

class NcclFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = nccl_cannot_run(); !why.empty()) GTEST_SKIP() << why;
  }
  const int rounds_ = nccl_is_real() ? kRealRounds : kFaultRounds;
  const int at_once_ = nccl_is_real() ? 1 : kAtOnce;
};

/// Tests that need a fault of the stand-in's.
class NcclStandinFaults : public NcclFaults {
 protected:
  void SetUp() override {
    if (nccl_is_real()) GTEST_SKIP() << kNeedsStandin;
  }
};
// A failure that is seen at once is diagnosed within three heartbeats, of a tenth of the timeout
// each. The store, too, has so long to answer.
CommOptions hasty() {
  return {.timeout_s = short_timeout_s(3), .grace_s = 1, .startup_timeout_s = 300};
}

// A failure that is published ends the waits: nobody waits for the deadline.
constexpr CommOptions kLong{.timeout_s = 300, .grace_s = 1, .startup_timeout_s = 300};

using Body = std::function<void(Communicator&, NcclTestRank&)>;

using Prepare = std::function<void(NcclTestRank&)>;

/// Both ranks of each round, until all have ended; what their errors said. A rank that throws
/// anything but an Error has ended as it wants to. `prepare`: before it joins.
std::vector<std::string> play_rounds(
    const Body& body, const CommOptions& options = hasty(), int rounds = kFaultRounds,
    int at_once = kAtOnce, const Prepare& prepare = [](NcclTestRank&) {}) {
  std::mutex mutex;
  std::vector<std::string> said;
  const auto play = [&] {
    run_with_store(2, [&](uint16_t port, int number) {
      NcclTestRank rank(number);
      prepare(rank);
      try {
        body(*rank.join(port, 2, options), rank);
      } catch (const Error& error) {
        std::lock_guard lock(mutex);
        said.emplace_back(error.what());
      } catch (const std::out_of_range&) {
        // Its own.
      }
    });
  };
  for (int begun = 0; begun < rounds; begun += at_once) {
    std::vector<std::jthread> threads;
    for (int i = begun; i < std::min(begun + at_once, rounds); ++i) threads.emplace_back(play);
  }
  return said;
}

/// Eight bytes each way, three times.
void swap_bytes_thrice(Communicator& group, NcclTestRank& rank) {
  group.set_step(4);
  const int peer = 1 - group.rank();
  for (const char* operation : {"dispatch", "combine", "sum"}) {
    const Message send{peer, 0, rank.take(8), 8}, receive{peer, 0, rank.take(8), 8};
    rank.wait(group, *group.exchange({&send, 1}, {&receive, 1}, operation));
  }
}

TEST_F(NcclStandinFaults,
       a_group_that_hangs_on_the_device_ends_by_the_deadline_with_both_ranks_named) {
  const StandinFaults faults("hang,rank=1,group=2");
  const std::vector<std::string> said = play_rounds(swap_bytes_thrice);
  EXPECT_EQ(said.size(), 2u * kFaultRounds);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 1"), HasSubstr("rank 0"), ContainsRegex(kWaited),
                               HasSubstr("step 4, combine"))));
}

TEST_F(NcclStandinFaults, a_driver_that_holds_who_asks_is_waited_for_no_longer_than_the_timeout) {
  const StandinFaults faults("hang,rank=1,group=2");
  const auto hold = [](NcclTestRank& rank) {
    rank.device.has_passed = [has_passed = rank.device.has_passed](const DeviceMark& mark) {
      while (!has_passed(mark)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return true;
    };
  };
  const std::vector<std::string> said =
      play_rounds(swap_bytes_thrice, hasty(), kFaultRounds, kAtOnce, hold);
  EXPECT_EQ(said.size(), 2u * kFaultRounds);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 1"), HasSubstr("rank 0"), ContainsRegex(kWaited),
                               HasSubstr("step 4, combine"))));
}

TEST_F(NcclStandinFaults, an_error_that_nccl_reports_is_said_by_both_ranks) {
  const StandinFaults faults("error,rank=1,group=2");
  const std::vector<std::string> said = play_rounds(swap_bytes_thrice, hasty());
  EXPECT_EQ(said.size(), 2u * kFaultRounds);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("NCCL: unhandled system error (a fault that a test asked "
                                         "for); rank 1 lost its connection to rank 0 in step 4, "
                                         "combine"))));
}

TEST_F(NcclStandinFaults, a_call_that_fails_is_said) {
  const StandinFaults faults("refuse,rank=0,group=3");
  const std::vector<std::string> said = play_rounds(swap_bytes_thrice, hasty());
  EXPECT_EQ(said.size(), 2u * kFaultRounds);
  EXPECT_THAT(said, Each(HasSubstr("NCCL: ncclGroupEnd: internal error; rank 0 lost its "
                                   "connection to rank 1 in step 4, sum")));
}

TEST_F(NcclStandinFaults, a_call_that_does_not_return_is_waited_for_no_longer_than_the_timeout) {
  const StandinFaults faults("block,rank=0,group=1");
  const std::vector<std::string> said = play_rounds(swap_bytes_thrice);
  EXPECT_EQ(said.size(), 2u * kFaultRounds);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), ContainsRegex(kWaited),
                               HasSubstr("step 4, dispatch"))));
}

TEST_F(NcclStandinFaults, sizes_that_do_not_match_are_an_error_of_both_ranks) {
  const std::vector<std::string> said = play_rounds(
      [](Communicator& group, NcclTestRank& rank) {
        const int64_t bytes = group.rank() == 0 ? 8 : 4;
        const Message one{1 - group.rank(), 0, rank.take(8), bytes};
        group.rank() == 0 ? group.exchange({&one, 1}, {}, "sum")->wait()
                          : group.exchange({}, {&one, 1}, "sum")->wait();
      },
      hasty());
  EXPECT_EQ(said.size(), 2u * kFaultRounds);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("NCCL: invalid usage (rank "), HasSubstr("in sum"))));
}

/// A tag says nothing on the wire: exchanges in another order on the other rank do not fit.
TEST_F(NcclStandinFaults, exchanges_in_another_order_are_found_by_their_sizes) {
  const std::vector<std::string> said = play_rounds(
      [](Communicator& group, NcclTestRank& rank) {
        std::vector<std::unique_ptr<PendingExchange>> pending;
        for (const uint32_t tag : {1u, 2u}) {
          const uint32_t own = group.rank() == 0 ? tag : 3 - tag;
          const Message one{1 - group.rank(), own, rank.take(8), static_cast<int64_t>(own)};
          pending.push_back(group.rank() == 0 ? group.exchange({&one, 1}, {}, "sum")
                                              : group.exchange({}, {&one, 1}, "sum"));
        }
        pending.back()->wait();
      },
      hasty());
  EXPECT_EQ(said.size(), 2u * kFaultRounds);
  EXPECT_THAT(said, Each(HasSubstr("NCCL: invalid usage (rank ")));
}

TEST_F(NcclFaults, a_rank_that_computes_beyond_the_deadline_is_named_with_its_step) {
  const auto body = [](Communicator& group, NcclTestRank& rank, std::latch& over) {
    group.set_step(4);
    if (group.rank() == 1) {
      group.exchange({}, {}, "forward layer 1 core_attention")->wait();
      over.wait();
      return;
    }
    const Message in{1, 0, rank.take(1), 1};
    try {
      rank.wait(group, *group.exchange({}, {&in, 1}, "forward layer 1 dispatch"));
    } catch (const Error&) {
      over.count_down();
      throw;
    }
  };
  for (int played = 0; played < rounds_; played += at_once_) {
    std::latch over(at_once_);
    const std::vector<std::string> said =
        play_rounds([&](Communicator& group, NcclTestRank& rank) { body(group, rank, over); },
                    hasty(), at_once_, at_once_);
    EXPECT_EQ(said.size(), static_cast<size_t>(at_once_));
    EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 1 is alive but behind (at step 4, forward layer 1 "
                                           "core_attention); rank 0 waited "),
                                 ContainsRegex(kWaited),
                                 HasSubstr("for it in step 4, forward layer 1 dispatch"))));
  }
}

TEST_F(NcclFaults, a_rank_that_fails_is_named_before_the_deadline) {
  std::mutex mutex;
  double longest_s = 0;  // from when a rank has connected until it throws
  const std::vector<std::string> said = play_rounds(
      [&](Communicator& group, NcclTestRank& rank) {
        const Stopwatch watch;
        const Message in{1, 0, rank.take(1), 1};
        if (group.rank() == 1) throw std::out_of_range("mine");
        try {
          rank.wait(group, *group.exchange({}, {&in, 1}, "combine"));
        } catch (const Error&) {
          std::lock_guard lock(mutex);
          longest_s = std::max(longest_s, watch.seconds());
          throw;
        }
      },
      kLong, rounds_, at_once_);
  EXPECT_EQ(said.size(), static_cast<size_t>(rounds_));
  EXPECT_THAT(said, Each(HasSubstr("rank 1 ended with an error")));
  EXPECT_LT(longest_s, kLong.timeout_s);
}

TEST_F(NcclStandinFaults, a_rank_that_fails_is_named_though_NCCL_tells_nobody) {
  const StandinFaults faults("hang,rank=0,group=1");
  const Stopwatch watch;
  const std::vector<std::string> said = play_rounds(
      [](Communicator& group, NcclTestRank& rank) {
        if (group.rank() == 1) throw std::out_of_range("mine");
        const Message in{1, 0, rank.take(1), 1};
        rank.wait(group, *group.exchange({}, {&in, 1}, "combine"));
      },
      kLong, kAtOnce);
  EXPECT_EQ(said.size(), static_cast<size_t>(kAtOnce));
  EXPECT_THAT(said, Each(HasSubstr("rank 1 ended with an error")));
  EXPECT_LT(watch.seconds(), kLong.timeout_s);
}

TEST_F(NcclStandinFaults, a_rank_that_does_not_connect_ends_the_start_by_its_deadline) {
  const Stopwatch watch;
  EXPECT_THAT(play_rounds([](Communicator&, NcclTestRank&) {}, kLong), ::testing::IsEmpty());
  const double all_start_s = watch.seconds();
  const StandinFaults faults("start,rank=1");
  const std::vector<std::string> said =
      play_rounds([](Communicator&, NcclTestRank&) { FAIL() << "connected"; },
                  {.timeout_s = 1, .grace_s = 1, .startup_timeout_s = std::max(1., all_start_s)});
  EXPECT_EQ(said.size(), 2u * kFaultRounds);
  EXPECT_THAT(said, Each(AllOf(HasSubstr("rank 1"), HasSubstr("connecting all ranks"))));
}

TEST_F(NcclFaults, a_rank_that_is_done_waits_for_the_others_without_an_error) {
  std::atomic<int> done = 0;
  const CommOptions options = hasty();
  const std::vector<std::string> said = play_rounds(
      [&](Communicator& group, NcclTestRank& rank) {
        swap_bytes_thrice(group, rank);
        if (group.rank() == 0)
          std::this_thread::sleep_for(std::chrono::duration<double>(1.5 * options.timeout_s));
        ++done;
      },
      options, rounds_, at_once_);
  EXPECT_THAT(said, ::testing::IsEmpty());
  EXPECT_EQ(done, 2 * rounds_);
}

}  // namespace
}  // namespace distca
