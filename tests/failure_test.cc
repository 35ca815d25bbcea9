// A rank that is killed or stopped in the middle of training: the run ends soon, names who is to
// blame, and leaves no process and no weights. What a user stops: terminal_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <thread>

#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Core attention takes many times as long as everything else between two waits.
const Words kLongOperations = {"attention.kernel=reference", "batch.nano_batch_tokens=2048"};

class FailureTest : public TrainingTest {
 protected:
  /// Seconds, measured once: a whole run of three ranks takes as long, so no wait of a healthy rank
  /// does, whatever else the machine computes.
  double timeout() const {
    static const double seconds = [this] {
      const auto begin = std::chrono::steady_clock::now();
      succeed(TrainingTest::arguments(joined({"--workers", "3", "train.steps=3"}, kLongOperations),
                                      "measured"));
      return std::max(
          5., std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }();
    return seconds;
  }

  /// Arguments of a training that does not end by itself.
  Words arguments(const Words& more = {}) const {
    return joined(TrainingTest::arguments({"train.steps=1000000", "train.validation_every=0",
                                           fmt::format("comm.timeout_s={}", timeout()),
                                           fmt::format("comm.grace_s={}", 0.4 * timeout())}),
                  more);
  }

  void wait_for_steps(Program& program) {
    ASSERT_TRUE(wait_until([&] { return metrics().size() >= 3 || program.processes().empty(); }));
    ASSERT_GE(metrics().size(), 3u) << program.wait().err;
    // A rank's last post is at most one heartbeat old: a tenth of the timeout.
    std::this_thread::sleep_for(std::chrono::duration<double>(timeout() / 5));
  }

  /// Ranks in the middle of a step.
  void start(const Words& words = {"--workers", "3"}, size_t ranks = 3) {
    program_.emplace(arguments(words));
    ASSERT_NO_FATAL_FAILURE(wait_for_steps(*program_));
    ASSERT_EQ(program_->processes().size(), 1 + ranks);
  }

  /// Signals one rank; returns the last line on stderr.
  std::string last_line_after(int signal, int rank) {
    kill(program_->pid_of_rank(rank), signal);
    const Outcome outcome = program_->wait();
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

/// Holds the main thread of a process in the midst of what it computes; its other threads go on.
class HeldThread {
 public:
  explicit HeldThread(pid_t process) : process_(process), holder_([this] { hold(); }) {
    tried_.get_future().wait();
  }
  ~HeldThread() {
    if (held_) kill(process_, SIGKILL);  // it has ended already, unless something failed
    holder_.join();
  }
  bool held() const { return held_; }
  bool caught() const { return caught_; }

 private:
  struct Computed {
    int64_t nanoseconds = 0;  // on a processor
    int64_t waits = 0;        // how often it has given the processor up by itself
  };

  /// Traces the thread until the process ends, because its tracer has to wait for its end. How long
  /// a rank computes without a wait depends on the machine, so that is found by trying.
  void hold() {
    held_ = ptrace(PTRACE_SEIZE, process_, nullptr, nullptr) == 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kPatience);
    for (double seconds = 0.004; held_ && std::chrono::steady_clock::now() < end;) {
      if (!computes_for(seconds)) {
        seconds /= 2;
      } else if (stops_in_computing()) {
        caught_ = true;
        break;
      } else {
        seconds *= 2;
        ptrace(PTRACE_CONT, process_, nullptr, nullptr);
      }
    }
    tried_.set_value();
    for (int status = 0; held_ && waitpid(process_, &status, __WALL) == process_;)
      held_ = !WIFEXITED(status) && !WIFSIGNALED(status);
  }
  /// Returns whether the thread, within two seconds, has computed this long and waited for
  /// nothing; true also if the process has ended.
  bool computes_for(double seconds) {
    since_ = computed();
    return wait_until(
        [&] {
          const Computed now = computed();
          if (now.waits != since_.waits) since_ = now;
          return now.nanoseconds >= since_.nanoseconds + static_cast<int64_t>(seconds * 1e9);
        },
        2, 1e-4);
  }
  /// Stops the thread. Returns true if it was still computing then, or has ended. A wait for
  /// another rank is outside of system calls only for moments, but may be stopped in them.
  bool stops_in_computing() const {
    int status = 0;
    ptrace(PTRACE_INTERRUPT, process_, nullptr, nullptr);
    if (waitpid(process_, &status, __WALL) != process_ || !WIFSTOPPED(status)) return true;
    std::ifstream call(fmt::format("/proc/{}/syscall", process_));
    int64_t number = -1;
    call >> number;
    return number == -1 && computed().waits <= since_.waits + 1;  // the stop counts as one
  }
  Computed computed() const {
    Computed computed;
    std::ifstream(fmt::format("/proc/{}/schedstat", process_)) >> computed.nanoseconds;
    std::ifstream status(fmt::format("/proc/{}/status", process_));
    for (std::string word; status >> word;)
      if (word == "voluntary_ctxt_switches:") status >> computed.waits;
    return computed;
  }

  const pid_t process_;
  Computed since_;                  // at the end of its latest wait
  std::atomic<bool> held_ = false;  // traced
  std::atomic<bool> caught_ = false;
  std::promise<void> tried_;
  std::thread holder_;
};

TEST_P(LostStageTest, a_slow_rank_is_named_with_its_stage) {
  ASSERT_NO_FATAL_FAILURE(start_stages(kLongOperations));
  const HeldThread slow(program_->pid_of_rank(GetParam()));
  if (!slow.held()) GTEST_SKIP() << "this system lets nobody hold a thread (ptrace)";
  ASSERT_TRUE(slow.caught()) << "the rank was never found computing";
  EXPECT_THAT(
      last_line_after(0, GetParam()),
      AllOf(HasSubstr(fmt::format("rank {0} (stage {0}, replica 0) is alive but behind (at step ",
                                  GetParam())),
            ContainsRegex(" waited [0-9.]+ s for ")));
}

INSTANTIATE_TEST_SUITE_P(stages, LostStageTest, ::testing::Values(0, 1, 2));

class LostTensorRankTest : public FailureTest {
 protected:
  void start_partners(const Words& more = {}) {
    start(joined({"--workers", "4", "parallel.tensor_model_parallel_size=2"}, more), 4);
  }
};

TEST_F(LostTensorRankTest, a_killed_partner_is_named_with_its_index) {
  ASSERT_NO_FATAL_FAILURE(start_partners());
  EXPECT_THAT(last_line_after(SIGKILL, 3),
              AllOf(HasSubstr("rank 3 (replica 1, tensor 1) was killed by signal 9 (SIGKILL)"),
                    HasSubstr("step ")));
}

TEST_F(LostTensorRankTest, a_stopped_partner_is_named_with_its_index) {
  ASSERT_NO_FATAL_FAILURE(start_partners());
  EXPECT_THAT(last_line_after(SIGSTOP, 1),
              AllOf(HasSubstr("rank 1 (replica 0, tensor 1) is silent since "),
                    HasSubstr("last seen: step ")));
}

TEST_F(LostTensorRankTest, a_slow_partner_is_named_with_its_index) {
  ASSERT_NO_FATAL_FAILURE(start_partners(kLongOperations));
  const HeldThread slow(program_->pid_of_rank(2));
  if (!slow.held()) GTEST_SKIP() << "this system lets nobody hold a thread (ptrace)";
  ASSERT_TRUE(slow.caught()) << "the rank was never found computing";
  EXPECT_THAT(last_line_after(0, 2),
              AllOf(HasSubstr("rank 2 (replica 1, tensor 0) is alive but behind (at step "),
                    ContainsRegex(" waited [0-9.]+ s for ")));
}

TEST_F(FailureTest, without_our_launcher_the_death_of_rank_0_is_named_too) {
  const std::string port = free_port();
  Program first(arguments(), torchrun_environment(0, 2, port));
  Program second(arguments(), torchrun_environment(1, 2, port));
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(first));
  kill(first.pid(), SIGKILL);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGKILL);
  const Outcome outcome = second.wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(StartsWith("distca: error: rank 0 "), HasSubstr("step ")));
  // The process that keeps the store ends one grace period after rank 0.
  EXPECT_TRUE(wait_until([&] { return first.processes().empty(); }));
}

TEST_F(FailureTest, ranks_die_with_a_killed_launcher) {
  ASSERT_NO_FATAL_FAILURE(start());
  kill(program_->pid(), SIGKILL);
  EXPECT_EQ(program_->wait().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(wait_until([&] { return program_->processes().empty(); }));
}

}  // namespace
}  // namespace distca::testing
