#include "distca/comm/device_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>

namespace distca {
namespace {

using State = DeviceWatch::State;

/// A watch whose abort() hands over the wait it was called for.
struct Watched {
  explicit Watched(
      double timeout_s, std::function<void()> on_abort = [] {})
      : watch({.timeout_s = timeout_s,
               .alarmed = [this] { return alarmed.load(); },
               .abort =
                   [this, on_abort](const FailedWait& wait) {
                     aborted.set_value(wait);
                     on_abort();
                   }}) {}

  /// The wait that the group was aborted for.
  FailedWait failed() {
    auto future = aborted.get_future();
    EXPECT_EQ(future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    return future.get();
  }
  std::string failure_within_seconds() const {
    for (int i = 0; i < 400 && watch.failure().empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return watch.failure();
  }

  std::atomic<bool> alarmed = false;
  std::promise<FailedWait> aborted;
  DeviceWatch watch;
};

TEST(DeviceWatch, an_exchange_that_throws_is_lost_and_says_why) {
  Watched group(60);
  group.watch.watch([] { return State::kUnderWay; }, {.rank = 1});
  group.watch.watch([]() -> State { throw std::runtime_error("NCCL error 6"); }, {.rank = 2});
  const FailedWait failed = group.failed();
  EXPECT_EQ(failed.rank, 2);
  EXPECT_EQ(failed.end, WaitEnd::kConnectionLost);
  EXPECT_EQ(group.watch.failure(), " (NCCL error 6)");
}

TEST(DeviceWatch, an_abort_that_throws_ends_nothing_but_the_watch) {
  Watched group(60, [] { throw std::runtime_error("cannot abort"); });
  group.watch.watch([] { return State::kLost; }, {.rank = 3});
  EXPECT_EQ(group.failed().rank, 3);
  EXPECT_EQ(group.failure_within_seconds(), " (cannot abort)");
}

TEST(DeviceWatch, what_is_not_over_in_time_ends_the_group_with_the_first_wait) {
  Watched group(0.1);
  group.watch.watch([] { return State::kOver; }, {.rank = 1});
  group.watch.watch([] { return State::kUnderWay; }, {.rank = 2});
  group.watch.watch([] { return State::kUnderWay; }, {.rank = 3});
  const FailedWait failed = group.failed();
  EXPECT_EQ(failed.rank, 2);
  EXPECT_EQ(failed.end, WaitEnd::kGaveUp);
  EXPECT_GT(failed.waited_s, 0.1);
  EXPECT_EQ(group.watch.failure(), "");
}

TEST(DeviceWatch, an_alarm_ends_the_wait_at_once_and_a_finished_exchange_does_not) {
  Watched group(60);
  std::atomic<int> asked = 0;
  group.watch.watch([&] { return ++asked, State::kOver; }, {.rank = 1});
  while (asked == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  group.alarmed = true;
  group.watch.watch([] { return State::kUnderWay; }, {.rank = 2});
  EXPECT_EQ(group.failed().rank, 2);
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace distca
