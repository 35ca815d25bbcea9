// Somebody stops a launch: which rank gets how much time, what is said, and what is returned.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/stop_signals.h"
#include "distca/comm/launch/launch_testing.h"

namespace distca {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// Launches, and signals the launcher `times` times once two ranks have said their pids; no process
/// is left then.
Outcome stop(const Launch& how, int signal, int times = 1) {
  Process process(how);
  process.read_until("pid ", 2);
  const std::set<pid_t> pids = pids_in(process.output);
  EXPECT_EQ(pids.size(), 2u) << process.output;
  for (const pid_t pid : pids) EXPECT_TRUE(runs(pid));
  const Stopwatch watch;
  for (int i = 0; i < times; ++i) {
    if (i > 0) sleep(2.4 * kOneStop);
    kill(process.pid(), signal);
  }
  Outcome outcome{
      .exit_code = process.wait(), .seconds = watch.seconds(), .output = process.output};
  for (const pid_t pid : pids) EXPECT_FALSE(runs(pid)) << outcome.output;
  return outcome;
}

/// The line about a stop that rank 0 said nothing about.
std::string nothing_said(int signal) {
  return fmt::format(
      "distca: stopped by {}; rank 0 did not say at which step; what is saved is in "
      "the run's checkpoints\n",
      signal_name(signal));
}

/// For each signal, all at once.
void for_each_signal(const std::function<void(int signal)>& body) {
  std::vector<std::thread> threads;
  for (const int signal : kStopSignals) threads.emplace_back(body, signal);
  for (std::thread& thread : threads) thread.join();
}

TEST(StopLaunch, ranks_that_save_end_by_themselves) {
  for_each_signal([](int signal) {
    const Outcome outcome = stop({.mode = {"stopped-save"}}, signal);
    EXPECT_EQ(outcome.exit_code, signal == SIGINT ? 130 : 0) << outcome.output;
    EXPECT_LT(outcome.seconds, kLimit);
    EXPECT_THAT(outcome.output,
                EndsWith(fmt::format("\ndistca: stopped by {}; saved\n", signal_name(signal))));
    EXPECT_EQ(count(outcome.output, "distca: "), 1) << outcome.output;
  });
}

TEST(StopLaunch, ranks_that_cannot_handle_the_signal_yet_die_of_it) {
  for_each_signal([](int signal) {
    const Outcome outcome = stop({.mode = {"wait"}, .max_restarts = 3}, signal);
    EXPECT_EQ(outcome.exit_code, 130);
    EXPECT_LT(outcome.seconds, kLimit);
    EXPECT_THAT(outcome.output, EndsWith(nothing_said(signal)));
    EXPECT_EQ(count(outcome.output, "distca: "), 1) << outcome.output;
  });
}

TEST(StopLaunch, a_rank_that_handles_it_does_not_wait_for_one_that_died_of_it) {
  const Outcome outcome = stop({.mode = {"half-ready", "0"}}, SIGTERM);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_LT(outcome.seconds, kLimit);
  EXPECT_THAT(outcome.output, EndsWith(nothing_said(SIGTERM)));
  EXPECT_EQ(count_errors(outcome.output), 0) << outcome.output;
}

TEST(StopLaunch, rank_0_may_save_for_long_after_the_others_have_ended) {
  const Outcome outcome = stop({.mode = {"stopped-long"}}, SIGTERM);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_GT(outcome.seconds, 6);  // more than the 4 s that ranks have after a run that nobody stops
  EXPECT_THAT(outcome.output, EndsWith("distca: stopped by SIGTERM; saved\n"));
}

TEST(StopLaunch, where_rank_0_cannot_save_nobody_is_waited_for_and_nothing_started_again) {
  for_each_signal([](int signal) {
    const Outcome outcome = stop({.mode = {"stopped-fail"}, .max_restarts = 3}, signal);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_LT(outcome.seconds, kLimit);
    EXPECT_THAT(outcome.output, EndsWith("distca: error: checkpoint: No space left on device\n"));
    EXPECT_EQ(count(outcome.output, "distca: "), 1) << outcome.output;
  });
}

TEST(StopLaunch, the_second_signal_ends_it_at_once) {
  const Outcome outcome = stop({.mode = {"stopped-hang"}}, SIGTERM, 2);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_LT(outcome.seconds, kLimit);  // not the hour that ranks have to save
  EXPECT_THAT(outcome.output, EndsWith(nothing_said(SIGTERM)));
}

TEST(StopLaunch, ranks_that_take_too_long_are_ended_and_rank_0_says_so) {
  const Outcome outcome = stop({.mode = {"stopped-hang"}, .stop_grace_s = 1}, SIGUSR1);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_GT(outcome.seconds, 1);
  EXPECT_LT(outcome.seconds, kLimit);
  EXPECT_THAT(outcome.output, EndsWith("distca: stopped by SIGTERM; not saved\n"));
}

TEST(StopLaunch, between_two_attempts_it_is_not_lost) {
  Process process(Launch{.mode = {"kill", "1"}, .max_restarts = 100});
  process.read_until("; restart 1 of 100\n", 1);
  const Stopwatch watch;
  kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait(), 130);
  EXPECT_LT(watch.seconds(), kLimit);
  EXPECT_THAT(process.output, EndsWith(nothing_said(SIGTERM)));
  EXPECT_THAT(process.output, Not(HasSubstr("restart 2")));
  for (const pid_t pid : pids_in(process.output)) EXPECT_FALSE(runs(pid));
}

}  // namespace
}  // namespace distca
