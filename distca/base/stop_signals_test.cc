#include "distca/base/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace distca {
namespace {

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

std::string say_so(const std::string& signal) { return "stopped by " + signal; }

// Each of the following functions runs in a process of its own.

/// Waits to be stopped by what it raises.
void stop_by(int signal) {
  const StopSignals stop([](int) { return false; }, say_so);
  raise(signal);
  sleep(600);
}

/// Goes on after `signal`, until it has been asked and beyond; returns whether it was asked once,
/// and for that signal.
bool goes_on_after(int signal, int times = 1) {
  std::atomic<int> asked = 0, times_asked = 0;
  const StopSignals stop(
      [&](int which) {
        asked = which;
        ++times_asked;
        return true;
      },
      say_so);
  for (int i = 0; i < times; ++i) raise(signal);
  while (times_asked == 0) sleep(0.01);
  sleep(0.1);
  return asked == signal && times_asked == 1;
}

TEST(StopSignals, each_is_reported_in_one_line_with_exit_code_130) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(stop_by(SIGINT), ::testing::ExitedWithCode(130), "^distca: stopped by SIGINT\n$");
  EXPECT_EXIT(stop_by(SIGTERM), ::testing::ExitedWithCode(130), "^distca: stopped by SIGTERM\n$");
  EXPECT_EXIT(stop_by(SIGHUP), ::testing::ExitedWithCode(130), "^distca: stopped by SIGHUP\n$");
  EXPECT_EXIT(stop_by(SIGUSR1), ::testing::ExitedWithCode(130), "^distca: stopped by SIGUSR1\n$");
}

TEST(StopSignals, a_program_that_will_end_by_itself_goes_on) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : kStopSignals) {
    EXPECT_EXIT(_exit(goes_on_after(signal) ? 0 : 1), ::testing::ExitedWithCode(0), "^$");
  }
}

TEST(StopSignals, the_second_ends_a_program_that_goes_on_with_its_last_words) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals stop([](int) { return true; }, say_so);
        raise(SIGUSR1);
        sleep(2.4 * kOneStop);
        raise(SIGTERM);
        sleep(600);
      },
      ::testing::ExitedWithCode(130), "^distca: stopped by SIGTERM\n$");
}

TEST(StopSignals, the_second_is_in_a_hurry_where_last_words_are_under_way) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals stop([](int) { return false; },
                               [](const std::string&) {
                                 sleep(600);
                                 return "";
                               });
        raise(SIGINT);
        sleep(2.4 * kOneStop);
        raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "^$");
}

TEST(StopSignals, so_is_the_third_after_a_program_that_went_on) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals stop([](int) { return true; },
                               [](const std::string&) {
                                 sleep(600);
                                 return "";
                               });
        for (int i = 0; i < 3; ++i) {
          raise(SIGTERM);
          sleep(2.4 * kOneStop);
        }
      },
      ::testing::KilledBySignal(SIGTERM), "^$");
}

TEST(StopSignals, two_at_once_are_one) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const StopSignals stop([](int) { return false; },
                               [](const std::string& name) {
                                 sleep(0.1);
                                 return say_so(name);
                               });
        raise(SIGTERM);  // `timeout` signals the process, then its group
        raise(SIGTERM);
        sleep(600);
      },
      ::testing::ExitedWithCode(130), "^distca: stopped by SIGTERM\n$");
  EXPECT_EXIT(_exit(goes_on_after(SIGTERM, 2) ? 0 : 1), ::testing::ExitedWithCode(0), "^$");
}

TEST(StopSignals, an_ignored_one_stays_ignored) {
  std::signal(SIGHUP, SIG_IGN);
  EXPECT_TRUE(is_ignored(SIGHUP));
  {
    const StopSignals stop([](int) { return false; }, say_so);
    EXPECT_TRUE(is_ignored(SIGHUP));
    EXPECT_FALSE(is_ignored(SIGINT));
    raise(SIGHUP);
  }
  EXPECT_TRUE(is_ignored(SIGHUP));
  std::signal(SIGHUP, SIG_DFL);
}

TEST(StopSignals, without_it_a_signal_ends_the_process_as_before) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : kStopSignals) {
    EXPECT_EXIT(
        {
          goes_on_after(signal);
          raise(signal);
        },
        ::testing::KilledBySignal(signal), "^$");
  }
}

}  // namespace
}  // namespace distca
