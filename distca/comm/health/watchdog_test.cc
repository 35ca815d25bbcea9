#include "distca/comm/health/watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace distca {
namespace {

using std::chrono::milliseconds;

TEST(Watchdog, a_wait_beyond_the_timeout_is_aborted_once) {
  Watchdog watchdog(0.05, 0.01);
  std::atomic<int> aborts = 0;
  std::promise<void> aborted;
  watchdog.begin([&] {
    if (++aborts == 1) aborted.set_value();
  });
  aborted.get_future().wait();
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_GE(watchdog.end(), 0.1);
  EXPECT_EQ(aborts, 1);
}

TEST(Watchdog, a_wait_that_ends_in_time_is_left_alone) {
  Watchdog watchdog(1, 0.01);
  std::atomic<int> aborts = 0;
  for (int i = 0; i < 20; ++i) {  // 1.2 s in all, each wait far below the timeout
    watchdog.begin([&] { ++aborts; });
    std::this_thread::sleep_for(milliseconds(60));
    watchdog.end();
  }
  EXPECT_EQ(aborts, 0);
}

TEST(Watchdog, after_an_interrupt_every_wait_ends_at_once) {
  Watchdog watchdog(60, 1);
  int aborts = 0;
  watchdog.begin([&] { ++aborts; });
  watchdog.interrupt();
  EXPECT_EQ(aborts, 1);
  watchdog.end();
  watchdog.begin([&] { ++aborts; });
  EXPECT_EQ(aborts, 2);
  watchdog.end();
}

}  // namespace
}  // namespace distca
