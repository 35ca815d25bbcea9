#include "distca/base/stop_signals.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace distca {
namespace {

/// Runs in a process of its own: waits to be stopped by what it raises.
void stop_by(int signal) {
  const StopSignals stop([](const std::string& name) { return "stopped by " + name; });
  raise(signal);
  std::this_thread::sleep_for(std::chrono::seconds(20));
}

TEST(StopSignals, each_is_told_in_one_line_with_exit_code_130) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(stop_by(SIGINT), testing::ExitedWithCode(130), "^distca: stopped by SIGINT\n$");
  EXPECT_EXIT(stop_by(SIGTERM), testing::ExitedWithCode(130), "^distca: stopped by SIGTERM\n$");
  EXPECT_EXIT(stop_by(SIGHUP), testing::ExitedWithCode(130), "^distca: stopped by SIGHUP\n$");
}

TEST(StopSignals, the_second_is_in_a_hurry) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals stop([](const std::string&) {
          std::this_thread::sleep_for(std::chrono::seconds(20));
          return "";
        });
        raise(SIGINT);
        std::this_thread::sleep_for(std::chrono::duration<double>(1.2 * kOneStop));
        raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "^$");
}

TEST(StopSignals, two_at_once_are_one) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals stop([](const std::string& name) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          return "stopped by " + name;
        });
        raise(SIGTERM);  // as `timeout` does it: the process, then its group
        raise(SIGTERM);
        std::this_thread::sleep_for(std::chrono::seconds(20));
      },
      testing::ExitedWithCode(130), "^distca: stopped by SIGTERM\n$");
}

TEST(StopSignals, an_ignored_one_stays_ignored) {
  std::signal(SIGHUP, SIG_IGN);
  EXPECT_TRUE(is_ignored(SIGHUP));
  {
    const StopSignals stop([](const std::string&) { return ""; });
    EXPECT_TRUE(is_ignored(SIGHUP));
    EXPECT_FALSE(is_ignored(SIGINT));
    raise(SIGHUP);
  }
  EXPECT_TRUE(is_ignored(SIGHUP));
  std::signal(SIGHUP, SIG_DFL);
}

TEST(StopSignals, without_it_a_signal_ends_the_process_as_before) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        {
          const StopSignals stop([](const std::string&) { return ""; });
        }
        raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "^$");
}

}  // namespace
}  // namespace distca
