// Runs that end because train.exit_duration_in_mins is over: they write what a finished run writes,
// say so, and go on bit for bit. Where the launch lies an hour back, each start has time for one
// step, however fast the machine is.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>

#include "distca/base/file.h"
#include "distca/checkpoint/safetensors.h"
#include "tests/checkpoint_runs.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// The value of a variable in a process's environment; "" if there is none.
std::string value_of(const std::string& name, pid_t pid) {
  std::ifstream environment(fmt::format("/proc/{}/environ", pid));
  for (std::string entry; std::getline(environment, entry, '\0');) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return "";
}

struct Way {
  const char* name;
  Words words;
};
std::string name_of(const ::testing::TestParamInfo<Way>& info) { return info.param.name; }

class TimeTest : public CheckpointTest {
 protected:
  static std::string hour_ago() {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    return fmt::format("{:.0f}", now.count() - 3600);
  }
  /// A start of the run that was launched an hour ago and has a minute.
  Outcome start_late(const Words& words) const {
    return Program(arguments(joined(words, {"train.exit_duration_in_mins=1"})),
                   {{"DISTCA_STARTED_AT", hour_ago()}})
        .wait();
  }
  std::string line_after(int64_t step, int64_t steps) const {
    return fmt::format(
        "distca: stopped by train.exit_duration_in_mins = 1 after step {} of {}; saved, resume "
        "with "
        "the same command and --resume ({}/checkpoints)\n",
        step, steps, run_.string());
  }
};

class EachStart : public TimeTest, public ::testing::WithParamInterface<Way> {};

TEST_P(EachStart, ends_after_a_step_and_the_next_goes_on_bit_for_bit) {
  const Words words =
      joined(GetParam().words, {"train.steps=4", "train.validation_every=1", "comm.grace_s=1"});
  const Training straight = train("straight", words);
  for (int64_t step = 1; step <= 4; ++step) {
    const Outcome outcome = start_late(step == 1 ? words : joined(words, {"--resume"}));
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, step < 4 ? line_after(step, 4) : "") << "the last step is the end";
    ASSERT_EQ(metrics().size(), static_cast<size_t>(step));
    const Json last = metrics().back();
    EXPECT_EQ(last.value("ended_by", ""), step < 4 ? "train.exit_duration_in_mins" : "");
    EXPECT_EQ(last.at("time_left_s"), 0);
    EXPECT_EQ(read_safetensors_metadata(run_ / "model.safetensors").at("steps"),
              std::to_string(step));
    EXPECT_TRUE(fs::exists(run_ / "config.json"));
    if (step < 4) {
      EXPECT_EQ(saved().back(), step);
    }
    if (step > 1) {
      EXPECT_THAT(outcome.out, HasSubstr("\nit goes on bit for bit\n"));
    }
  }
  EXPECT_THAT(unfinished(), IsEmpty());
  expect_same_bits(read_training("run"), straight);
}

INSTANTIATE_TEST_SUITE_P(
    , EachStart,
    ::testing::Values(Way{"one_worker", {}},
                      Way{"two_workers", {"--workers", "2", "--max-restarts", "3"}},
                      Way{"a_dedicated_server", {"--workers", "2", "servers.dedicated=1"}},
                      Way{"zero_1_beside_checkpoints",
                          {"--workers", "2", "comm.backend=threads",
                           "parallel.use_distributed_optimizer=true", "checkpoint.every_steps=1"}},
                      Way{"a_pipeline_that_waits_for_checkpoints",
                          {"--workers", "4", "comm.backend=threads",
                           "parallel.pipeline_model_parallel_size=2", "batch.nano_batches=4",
                           "checkpoint.async=false", "checkpoint.every_steps=2"}}),
    name_of);

TEST_F(TimeTest, the_end_has_a_validation_loss_that_no_step_was_to_have) {
  const Words words = {"train.steps=3", "train.validation_every=0"};
  const Training straight = train("straight", words);
  const Outcome outcome = start_late(words);
  EXPECT_EQ(outcome.err, line_after(1, 3));
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("\nstep 1/3  validation loss "), HasSubstr("\nLearned up to step 1 of 3\n"),
            HasSubstr("  validation loss "), HasSubstr("to go on from, the last one of step 1")));
  const double at_the_end = metrics().back().at("validation_loss");
  // The next start has time enough, and measures nothing after step 2.
  resume(joined(words, {"train.exit_duration_in_mins=1000"}));
  Training got = read_training("run");
  EXPECT_THAT(got.validation, ElementsAre(at_the_end, straight.validation.back()));
  got.validation = straight.validation;
  expect_same_bits(got, straight);
}

TEST_F(TimeTest, what_a_run_has_written_in_its_time_is_what_one_of_so_many_steps_writes) {
  // A run that would take days, and has some seconds, its start included.
  const Words words = {"train.validation_every=0", "optimizer.decay_steps=1000000", "--workers",
                       "2"};
  const Outcome outcome = run_distca(
      arguments(joined(words, {"train.steps=1000000", "train.exit_duration_in_mins=0.1"})));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr("distca: stopped by train.exit_duration_in_mins = 0.1 after "));
  const std::vector<Json> lines = metrics();
  const auto steps = static_cast<int64_t>(lines.size());
  EXPECT_THAT(saved(), ElementsAre(steps));
  const auto is_ended = [](const Json& line) { return line.contains("ended_by"); };
  EXPECT_EQ(std::ranges::count_if(lines, is_ended), 1);
  EXPECT_TRUE(is_ended(lines.back()));
  const Training straight =
      train("straight", joined(words, {fmt::format("train.steps={}", steps)}));
  expect_same_bits(read_training("run"), straight);
}

TEST_F(TimeTest, ranks_and_restarts_know_when_the_run_was_launched) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  program_.emplace(
      arguments({"train.steps=1000000", "train.validation_every=0", "--workers", "2",
                 "--max-restarts", "1", "checkpoint.every_steps=1", "comm.grace_s=1"}));
  ASSERT_TRUE(wait_for_steps(2));
  const pid_t rank = program_->pid_of_rank(1);
  const std::string launched = value_of("DISTCA_STARTED_AT", rank);
  EXPECT_NEAR(std::stod(launched), now.count(), kPatience);
  kill(rank, SIGKILL);
  std::string again;
  ASSERT_TRUE(wait_until([&] {
    for (const pid_t pid : program_->processes()) {
      if (value_of("DISTCA_RESTART", pid) == "1") again = value_of("DISTCA_STARTED_AT", pid);
    }
    return !again.empty();
  }));
  EXPECT_EQ(again, launched);
  kill_all();
}

TEST_F(TimeTest, a_launch_at_no_time_is_refused) {
  const Outcome outcome = Program(arguments(), {{"DISTCA_STARTED_AT", "noon"}}).wait();
  EXPECT_EQ(error_line(outcome, 2),
            "DISTCA_STARTED_AT = noon: Unix seconds, as date +%s gives them\n");
  EXPECT_FALSE(fs::exists(run_));
}

}  // namespace
}  // namespace distca::testing
