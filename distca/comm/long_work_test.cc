#include "distca/comm/long_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <thread>

#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/comm/thread_group.h"

namespace distca {
namespace {

using std::chrono::duration;

constexpr double kTimeout = 6;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

void on_three_ranks(const std::function<void(Communicator&)>& body) {
  run_ranks(3, {.timeout_s = kTimeout, .grace_s = 1}, body);
}

TEST(LongWork, may_take_longer_than_a_wait) {
  std::atomic<int> done = 0;
  on_three_ranks([&](Communicator& comm) {
    if (comm.rank() == 0) ::testing::internal::CaptureStderr();
    do_on_rank_0(comm, kTimeout, "reading", [&] {
      std::this_thread::sleep_for(duration<double>(1.5 * kTimeout));
      ++done;
    });
    if (comm.rank() == 0) {
      standard_error().finish(kTimeout);
      EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                  ::testing::MatchesRegex("(reading: rank 0 is at it for [0-9]+ s; nothing ends "
                                          "this wait\n)+"));
    }
    EXPECT_EQ(done, 1) << "of rank 0 alone, and all have waited for it";
    barrier(comm, "afterwards");
  });
}

TEST(LongWork, an_error_is_that_of_all_ranks) {
  on_three_ranks([](Communicator& comm) {
    try {
      do_long_work(comm, kTimeout, "work", [&] {
        if (comm.rank() > 0) throw Error(ErrorKind::kCheckpoint, "FILE {}", comm.rank());
      });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "rank 1: FILE 1");
      EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    }
    try {
      do_on_rank_0(comm, kTimeout, "work", [] { throw Error(ErrorKind::kIo, "disk"); });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "disk");
    }
    do_long_work(comm, kTimeout, "nothing", nullptr);
  });
}

TEST(LongWork, has_a_limit_where_one_is_given) {
  on_three_ranks([](Communicator& comm) {
    const auto waits = [&](bool is_done) {
      return [=](duration<double> most) {
        if (!is_done) std::this_thread::sleep_for(most);
        return is_done;
      };
    };
    EXPECT_EQ(await_long_work(comm, kTimeout, "work", 0.1, waits(comm.rank() != 2)), 2);
    EXPECT_EQ(await_long_work(comm, kTimeout, "work", kUnlimited, waits(true)), -1);
  });
}

}  // namespace
}  // namespace distca
