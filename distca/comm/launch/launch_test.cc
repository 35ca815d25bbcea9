// Real processes: what the launcher says and leaves behind when ranks end in every possible way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <mutex>
#include <regex>
#include <thread>

#include "distca/base/clock.h"
#include "distca/comm/launch/launch_testing.h"
#include "distca/comm/launch/local_store.h"
#include "distca/comm/test_groups.h"

namespace distca {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// The outcome of a launch that waits for timeouts of seconds: all of these run at first use, a few
/// at a time.
const Outcome& slow_launch(const std::string& mode) {
  static const std::map<std::string, int> kWorkers = {
      {"stop 0", 3},   {"stop 1", 3},   {"hang 1", 2}, {"stubborn 1", 2},
      {"linger 0", 2}, {"linger 1", 2}, {"save 0", 2}, {"freeze 0", 2}};
  static const std::map<std::string, Outcome> kOutcomes = [] {
    constexpr size_t kAtOnce = 4;
    const std::string timeout_s = std::to_string(short_timeout_s(2));
    std::map<std::string, Outcome> outcomes;
    std::mutex mutex;
    auto next = kWorkers.begin();
    const auto work = [&] {
      for (std::unique_lock lock(mutex); next != kWorkers.end();) {
        const auto& [words, workers] = *next++;
        const size_t space = words.find(' ');
        lock.unlock();
        SCOPED_TRACE(words);
        const Outcome outcome = launch({.workers = workers,
                                        .mode = {words.substr(0, space), words.substr(space + 1)},
                                        .environment = {{"LAUNCH_TEST_TIMEOUT_S", timeout_s}}});
        lock.lock();
        outcomes[words] = outcome;
      }
    };
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kAtOnce; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }();
  return kOutcomes.at(mode);
}

TEST(Launch, rank_0_prints_as_it_is_and_the_others_with_a_prefix) {
  const Outcome outcome = launch({.mode = {"ok"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("(^|\n)pid [0-9]+\n"));
  EXPECT_THAT(outcome.output, ContainsRegex("(^|\n)done\n"));
  EXPECT_THAT(outcome.output, HasSubstr("[rank 1] done\n"));
  EXPECT_THAT(outcome.output, HasSubstr("[rank 0] a word on stderr\n"));
  EXPECT_THAT(outcome.output, HasSubstr("[rank 1] a word on stderr\n"));
  EXPECT_EQ(pids_in(outcome.output).size(), 2u);
}

class LostRank : public ::testing::TestWithParam<int> {};

TEST_P(LostRank, killed_it_is_named_with_its_signal_and_what_it_was_at) {
  const Outcome outcome = launch({.workers = 3, .mode = {"kill", std::to_string(GetParam())}});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_LT(outcome.seconds, kLimit);
  EXPECT_THAT(
      outcome.output,
      HasSubstr(
          "distca: error: rank " + std::to_string(GetParam()) +
          " was killed by signal 9 (SIGKILL) (last seen: step 3, forward layer 2 dispatch); "));
  EXPECT_THAT(outcome.output,
              HasSubstr("; not by us: often it is the kernel, for lack of memory (see dmesg)\n"));
  EXPECT_EQ(count_errors(outcome.output), 1) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("done")));
}

TEST_P(LostRank, stopped_it_is_named_silent_and_does_not_survive) {
  const Outcome& outcome = slow_launch("stop " + std::to_string(GetParam()));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_LT(outcome.seconds, kLimit);
  EXPECT_THAT(outcome.output,
              HasSubstr("distca: error: rank " + std::to_string(GetParam()) + " is silent since "));
  EXPECT_THAT(outcome.output, HasSubstr(" s (last seen: step 3, forward layer 2 dispatch); rank "));
  EXPECT_EQ(count_errors(outcome.output), 1) << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(Each, LostRank, ::testing::Values(0, 1),
                         ::testing::PrintToStringParamName());

TEST(Launch, a_rank_that_computes_for_ever_is_named_behind) {
  const Outcome& outcome = slow_launch("hang 1");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_LT(outcome.seconds, kLimit);
  EXPECT_THAT(outcome.output, HasSubstr("distca: error: rank 1 is alive but behind (at step 3, "));
  EXPECT_EQ(count_errors(outcome.output), 1) << outcome.output;
}

TEST(Launch, bad_input_found_by_one_rank_passes_through_with_its_exit_code) {
  const Outcome outcome = launch({.workers = 3, .mode = {"throw", "1"}});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_LT(outcome.seconds, kLimit);
  EXPECT_THAT(outcome.output,
              HasSubstr("distca: error: token 300 is beyond the vocabulary of 256\n"));
  EXPECT_EQ(count_errors(outcome.output), 1) << outcome.output;
}

TEST(Launch, bad_input_found_by_all_is_reported_once) {
  const Outcome outcome = launch({.workers = 3, .mode = {"refuse"}});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.output, "distca: error: unknown key model.layer\n");
}

TEST(Launch, a_rank_that_ends_without_a_word_is_named_with_its_exit_code) {
  const Outcome outcome = launch({.mode = {"exit", "1"}});
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.output, HasSubstr("distca: error: rank 1 exited with code 7"));
  EXPECT_EQ(count_errors(outcome.output), 1) << outcome.output;
}

TEST(Launch, a_port_in_use_is_named) {
  const ListenSocket taken(Interface::kLoopback, 0);
  const Outcome outcome = launch({.workers = 2, .mode = {"ok"}, .port = taken.port()});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.output,
            "distca: error: port " + std::to_string(taken.port()) +
                " cannot be used: it is in use; choose another, or 0 to let the system choose\n");
}

TEST(Launch, what_the_callers_environment_says_of_ranks_does_not_reach_them) {
  const Outcome outcome = launch({.mode = {"ok"},
                                  .environment = {{"DISTCA_SIZE", "7"},
                                                  {"DISTCA_MASTER_ADDR", "nowhere.invalid"},
                                                  {"DISTCA_MASTER_PORT", "1"}}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(Launch, a_rank_that_ignores_sigterm_is_killed_and_the_launcher_sleeps_meanwhile) {
  const Outcome& outcome = slow_launch("stubborn 1");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_LT(outcome.seconds, kLimit);
  EXPECT_THAT(outcome.output, HasSubstr("distca: error: rank 1 is alive but behind (at step 3, "));
  std::smatch computed;
  ASSERT_TRUE(
      std::regex_search(outcome.output, computed, std::regex("the launcher computed ([0-9.]+) s")))
      << outcome.output;
  // A busy wait computes for most of the time.
  EXPECT_LT(std::stod(computed[1]), outcome.seconds / 8);
}

TEST(Launch, a_rank_that_is_done_and_does_not_end_is_named_and_does_not_keep_the_run) {
  for (const int rank : {0, 1}) {
    const Outcome& outcome = slow_launch("linger " + std::to_string(rank));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_LT(outcome.seconds, kLimit);
    EXPECT_THAT(outcome.output,
                HasSubstr("distca: rank " + std::to_string(rank) +
                          " was done but did not end within 4.0 s and was killed; the run is "
                          "complete\n"));
  }
}

TEST(Launch, rank_0_is_waited_for_while_it_saves_and_shows_life) {
  const Outcome& outcome = slow_launch("save 0");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_GT(outcome.seconds, 7);
  EXPECT_THAT(outcome.output,
              ContainsRegex("distca: waiting for rank 0, which saves or ends since [0-9]+ s"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("killed")));
}

TEST(Launch, rank_0_that_stops_while_it_saves_is_named) {
  const Outcome& outcome = slow_launch("freeze 0");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_LT(outcome.seconds, kLimit);
  EXPECT_THAT(
      outcome.output,
      HasSubstr("distca: error: rank 0 gave no sign of life within 4.0 s and was killed; it "
                "was saving the weights\n"));
  EXPECT_EQ(count_errors(outcome.output), 1) << outcome.output;
}

TEST(Launch, a_rank_goes_on_where_nobody_reads_what_it_prints) {
  const Stopwatch watch;
  Process process(Launch{.mode = {"chatter", "1"}});
  EXPECT_EQ(process.wait_without_reading(), 0);
  EXPECT_LT(watch.seconds(), kLimit);
}

TEST(Launch, ranks_do_not_outlive_a_killed_launcher) {
  Process process(Launch{.mode = {"wait"}});
  process.read_until("pid ", 2);
  const std::set<pid_t> pids = pids_in(process.output);
  ASSERT_EQ(pids.size(), 2u) << process.output;
  kill(process.pid(), SIGKILL);
  EXPECT_EQ(process.wait(), 128 + SIGKILL);  // the pipe ends when the last rank has closed it
  const Stopwatch watch;
  for (pid_t pid : pids) {
    while (runs(pid) && watch.seconds() < kLimit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_FALSE(runs(pid));
  }
}

std::map<std::string, std::string> open_mpi(int rank, uint16_t port) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"DISTCA_MASTER_PORT", std::to_string(port)}};
}

TEST(StoreProcess, ranks_that_another_launcher_started_meet_through_it) {
  const uint16_t port = free_port();
  Process rank0({"ok"}, open_mpi(0, port)), rank1({"ok"}, open_mpi(1, port));
  EXPECT_EQ(rank0.wait(), 0) << rank0.output;
  EXPECT_EQ(rank1.wait(), 0) << rank1.output;
}

TEST(StoreProcess, the_death_of_rank_0_is_reported) {
  const uint16_t port = free_port();
  Process rank0({"kill", "0"}, open_mpi(0, port)), rank1({"kill", "0"}, open_mpi(1, port));
  EXPECT_EQ(rank0.wait(), 128 + SIGKILL);
  EXPECT_EQ(rank1.wait(), 1);
  EXPECT_THAT(rank1.output,
              HasSubstr("distca: error: rank 0 ended unexpectedly (last seen: step 3, "));
}

TEST(StoreProcess, a_port_in_use_is_bad_input) {
  const ListenSocket taken(Interface::kAll, 0);
  Process rank0({"ok"}, open_mpi(0, taken.port()));
  EXPECT_EQ(rank0.wait(), 2);
  EXPECT_THAT(rank0.output, HasSubstr("port " + std::to_string(taken.port())));
}

}  // namespace
}  // namespace distca
