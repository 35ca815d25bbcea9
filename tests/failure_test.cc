// A rank that is killed or stopped in the middle of training: the run ends soon, names who is to
// blame, and leaves no process and no weights. What a user stops: terminal_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kTimeout = 3, kGrace = 2;  // seconds
// Beyond those two: three heartbeats to tell who is silent, SIGKILL two seconds after SIGTERM, and
// starved test machines.
constexpr double kSlack = 8;

class FailureTest : public TrainingTest {
 protected:
  /// Of a training that will not end by itself.
  Words arguments(const Words& more = {}) const {
    return joined(TrainingTest::arguments({"train.steps=1000000", "train.validation_every=0",
                                           fmt::format("comm.timeout_s={}", kTimeout),
                                           fmt::format("comm.grace_s={}", kGrace)}),
                  more);
  }

  void wait_for_steps() {
    ASSERT_TRUE(wait_until([&] { return metrics().size() >= 3; }, 60)) << "no third step";
    // A rank's last post is at most one heartbeat old: a tenth of the timeout.
    std::this_thread::sleep_for(std::chrono::duration<double>(kTimeout / 5));
  }

  /// Ranks in the middle of a step.
  void start(const Words& ranks = {"--workers", "3"}) {
    program_.emplace(arguments(ranks));
    ASSERT_NO_FATAL_FAILURE(wait_for_steps());
    ASSERT_EQ(program_->processes().size(), 4u);
  }

  /// Signals one rank; returns the last line on stderr.
  std::string last_line_after(int signal, int rank) {
    kill(program_->pid_of_rank(rank), signal);
    const Outcome outcome = program_->wait(kTimeout + kGrace + kSlack);
    EXPECT_EQ(program_->processes().size(), 0u);
    EXPECT_THAT(files_below(run_), ::testing::ElementsAre("config.toml", "metrics.jsonl"));
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_TRUE(outcome.err.ends_with('\n')) << outcome.err;
    const size_t before = outcome.err.rfind('\n', outcome.err.size() - 2);
    return outcome.err.substr(before == std::string::npos ? 0 : before + 1);
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
  ASSERT_NO_FATAL_FAILURE(start({"--workers", "2", "servers.dedicated=1"}));
  EXPECT_THAT(last_line_after(SIGKILL, 2), HasSubstr("rank 2 was killed by signal 9 (SIGKILL)"));
}

INSTANTIATE_TEST_SUITE_P(ranks, LostRankTest, ::testing::Values(0, 2));

class LostStageTest : public FailureTest, public ::testing::WithParamInterface<int> {
 protected:
  void start_stages(const Words& more = {}) {
    ASSERT_NO_FATAL_FAILURE(start(joined(
        {"--workers", "3", "parallel.pipeline_model_parallel_size=3", "model.num_hidden_layers=3"},
        more)));
  }
};

TEST_P(LostStageTest, a_killed_rank_is_named_with_its_stage) {
  ASSERT_NO_FATAL_FAILURE(start_stages());
  EXPECT_THAT(
      last_line_after(SIGKILL, GetParam()),
      AllOf(HasSubstr(fmt::format(
                "rank {0} (stage {0}, replica 0) was killed by signal 9 (SIGKILL)", GetParam())),
            HasSubstr("step ")));
}

TEST_P(LostStageTest, a_stopped_rank_is_named_with_its_stage) {
  ASSERT_NO_FATAL_FAILURE(start_stages());
  EXPECT_THAT(
      last_line_after(SIGSTOP, GetParam()),
      AllOf(HasSubstr(fmt::format("rank {0} (stage {0}, replica 0) is silent since ", GetParam())),
            HasSubstr("last seen: step ")));
}

/// Lets a process run for a fifteenth of the time.
class Throttle {
 public:
  explicit Throttle(pid_t pid)
      : thread_([pid](const std::stop_token& stop) {
          using namespace std::chrono_literals;
          while (!stop.stop_requested() && kill(pid, SIGSTOP) == 0) {
            std::this_thread::sleep_for(280ms);
            kill(pid, SIGCONT);
            std::this_thread::sleep_for(20ms);
          }
        }) {}

 private:
  std::jthread thread_;
};

TEST_P(LostStageTest, a_slow_rank_is_named_with_its_stage) {
  // An operation that takes longer than the timeout on the slow rank.
  ASSERT_NO_FATAL_FAILURE(
      start_stages({"attention.kernel=reference", "plan.scheduler=local",
                    "batch.nano_batch_tokens=4096", "batch.max_document_tokens=4096"}));
  const Throttle throttle(program_->pid_of_rank(GetParam()));
  EXPECT_THAT(
      last_line_after(0, GetParam()),
      AllOf(HasSubstr(fmt::format("rank {0} (stage {0}, replica 0) is alive but behind (at step ",
                                  GetParam())),
            HasSubstr(" waited 3.")));
}

INSTANTIATE_TEST_SUITE_P(stages, LostStageTest, ::testing::Values(0, 1, 2));

TEST_F(FailureTest, without_our_launcher_the_death_of_rank_0_is_named_too) {
  const std::string port = free_port();
  Program first(arguments(), torchrun_environment(0, 2, port));
  Program second(arguments(), torchrun_environment(1, 2, port));
  ASSERT_NO_FATAL_FAILURE(wait_for_steps());
  kill(first.pid(), SIGKILL);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGKILL);
  const Outcome outcome = second.wait(kTimeout + kGrace + kSlack);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(StartsWith("distca: error: rank 0 "), HasSubstr("step ")));
  // What keeps the store goes one grace period after rank 0.
  EXPECT_TRUE(wait_until([&] { return first.processes().empty(); }, kGrace + kSlack));
}

TEST_F(FailureTest, ranks_die_with_a_killed_launcher) {
  ASSERT_NO_FATAL_FAILURE(start());
  kill(program_->pid(), SIGKILL);
  EXPECT_EQ(program_->wait().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(wait_until([&] { return program_->processes().empty(); }, kSlack));
}

}  // namespace
}  // namespace distca::testing
