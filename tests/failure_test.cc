// A rank that is killed or stopped in the middle of training: the run ends soon, names who is to
// blame, and leaves no process and no weights. What a user stops: terminal_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "distca/base/clock.h"
#include "distca/batch/test_folder.h"
#include "tests/run_command.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kTimeout = 3, kGrace = 2;  // seconds
// Beyond those two: three heartbeats to tell who is silent, SIGKILL two seconds after SIGTERM, and
// starved test machines.
constexpr double kSlack = 8;

class FailureTest : public FolderTest {
 protected:
  /// Of a training that will not end by itself.
  std::vector<std::string> arguments() {
    return train_arguments(
        make_data_set(folder_), run_,
        {"train.steps=1000000", "train.validation_every=0",
         fmt::format("comm.timeout_s={}", kTimeout), fmt::format("comm.grace_s={}", kGrace)});
  }

  void wait_for_steps() {
    const Stopwatch watch;
    while (read_json_lines(run_ / "metrics.jsonl").size() < 3) {
      ASSERT_LT(watch.seconds(), 60) << "no third step";
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    // A rank's last post is at most one heartbeat old: a tenth of the timeout.
    std::this_thread::sleep_for(std::chrono::duration<double>(kTimeout / 5));
  }

  /// Three workers in the middle of a step.
  void start() {
    std::vector<std::string> words = arguments();
    words.insert(words.end(), {"--workers", "3"});
    program_.emplace(words);
    ASSERT_NO_FATAL_FAILURE(wait_for_steps());
    ASSERT_EQ(program_->processes().size(), 4u);
  }

  Outcome end() {
    const Outcome outcome = program_->wait(kTimeout + kGrace + kSlack);
    EXPECT_EQ(program_->processes().size(), 0u);
    EXPECT_THAT(files_below(run_), ::testing::ElementsAre("config.toml", "metrics.jsonl"));
    return outcome;
  }

  /// Signals one rank; returns the last line on stderr.
  std::string last_line_after(int signal, int rank) {
    kill(program_->pid_of_rank(rank), signal);
    const Outcome outcome = end();
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_TRUE(outcome.err.ends_with('\n')) << outcome.err;
    const size_t before = outcome.err.rfind('\n', outcome.err.size() - 2);
    return outcome.err.substr(before == std::string::npos ? 0 : before + 1);
  }

  fs::path run_;
  std::optional<Program> program_;

  void SetUp() override {
    FolderTest::SetUp();
    run_ = folder_ / "run";
  }
  void TearDown() override {
    program_.reset();  // it writes to the folder
    FolderTest::TearDown();
  }
};

class LostRankTest : public FailureTest, public ::testing::WithParamInterface<int> {};

TEST_P(LostRankTest, a_killed_rank_is_named) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_THAT(last_line_after(SIGKILL, GetParam()),
              AllOf(StartsWith("distca: error: "),
                    HasSubstr(fmt::format("rank {} was killed by signal 9 (SIGKILL)", GetParam())),
                    HasSubstr("step ")));
}

TEST_P(LostRankTest, a_stopped_rank_is_named) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_THAT(last_line_after(SIGSTOP, GetParam()),
              AllOf(StartsWith("distca: error: "),
                    HasSubstr(fmt::format("rank {} is silent since ", GetParam())),
                    HasSubstr("last seen: step ")));
}

TEST_F(FailureTest, a_killed_dedicated_server_is_named) {
  std::vector<std::string> words = arguments();
  words.insert(words.end(), {"--workers", "2", "servers.dedicated=1"});
  program_.emplace(words);
  ASSERT_NO_FATAL_FAILURE(wait_for_steps());
  EXPECT_THAT(last_line_after(SIGKILL, 2), HasSubstr("rank 2 was killed by signal 9 (SIGKILL)"));
}

INSTANTIATE_TEST_SUITE_P(ranks, LostRankTest, ::testing::Values(0, 2));

TEST_F(FailureTest, without_our_launcher_the_death_of_rank_0_is_named_too) {
  const std::vector<std::string> words = arguments();
  const std::string port = free_port();
  Program first(words, torchrun_environment(0, 2, port));
  Program second(words, torchrun_environment(1, 2, port));
  ASSERT_NO_FATAL_FAILURE(wait_for_steps());
  kill(first.pid(), SIGKILL);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGKILL);
  const Outcome outcome = second.wait(kTimeout + kGrace + kSlack);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(StartsWith("distca: error: rank 0 "), HasSubstr("step ")));
  // What keeps the store goes one grace period after rank 0.
  const Stopwatch watch;
  while (!first.processes().empty() && watch.seconds() < kGrace + kSlack) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(first.processes().size(), 0u);
}

TEST_F(FailureTest, ranks_die_with_a_killed_launcher) {
  ASSERT_NO_FATAL_FAILURE(start());
  kill(program_->pid(), SIGKILL);
  EXPECT_EQ(program_->wait().exit_code, 128 + SIGKILL);
  const Stopwatch watch;
  while (!program_->processes().empty() && watch.seconds() < kSlack) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(program_->processes().size(), 0u);
}

}  // namespace
}  // namespace distca::testing
