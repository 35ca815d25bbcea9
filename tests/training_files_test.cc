// `distca train` from end to end: what a run may replace, and what is left of one that fails.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <thread>

#include "distca/base/clock.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class RunFilesTest : public TrainingTest {
 protected:
  Outcome run(const std::vector<std::string>& more) {
    return run_distca(train_arguments(prefix_, folder_ / "run", more));
  }
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> all;
    for (const std::string& name : files_below(folder_ / "run"))
      all[name] = read_file(folder_ / "run" / name);
    return all;
  }
  static void expect_one_line(const std::string& text) {
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
};

TEST_F(RunFilesTest, a_permission_is_not_recorded_so_a_runs_own_configuration_deletes_nothing) {
  train("run", {"train.overwrite=true"});
  const auto before = contents();
  EXPECT_THAT(before.at("config.toml"), HasSubstr("\noverwrite = false\n"));
  const std::string config = folder_ / "run" / "config.toml";
  for (const char* workers : {"1", "2"}) {
    EXPECT_THAT(
        refusal({"train", "--config", config, "train.steps=3", "--workers", workers}),
        AllOf(HasSubstr("holds a run already (6 steps, 20"), HasSubstr("train.overwrite=true")));
    EXPECT_EQ(contents(), before);
  }
  const Outcome again = run_distca({"train", "--config", config, "train.overwrite=true"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out,
              HasSubstr("replacing the run in " + (folder_ / "run").string() + " (6 steps, 20"));
  EXPECT_EQ(contents().at("model.safetensors"), before.at("model.safetensors"));
  EXPECT_EQ(contents().at("config.toml"), before.at("config.toml"));
}

TEST_F(RunFilesTest, a_run_that_fails_leaves_the_weights_that_it_was_to_replace) {
  train("run", {});
  const auto before = contents();
  const Outcome failed = run({"train.overwrite=true", "optimizer.lr=1e9", "--workers", "2",
                              "batch.max_document_tokens=256"});
  EXPECT_EQ(failed.exit_code, 1) << failed.err;
  const auto after = contents();
  EXPECT_EQ(after.size(), 4u);
  EXPECT_EQ(after.at("model.safetensors"), before.at("model.safetensors"));
  EXPECT_EQ(after.at("config.json"), before.at("config.json"));
  EXPECT_NE(after.at("metrics.jsonl"), before.at("metrics.jsonl"));
  EXPECT_EQ(run({}).exit_code, 2) << "it would have replaced weights";
  EXPECT_EQ(contents(), after);
}

TEST_F(RunFilesTest, a_folder_without_weights_is_free_to_take) {
  const Outcome failed = run({"optimizer.lr=1e9"});
  EXPECT_EQ(failed.exit_code, 1) << failed.err;
  EXPECT_THAT(files_below(folder_ / "run"), ::testing::ElementsAre("config.toml", "metrics.jsonl"));
  const size_t steps = read_json_lines(folder_ / "run" / "metrics.jsonl").size();
  ASSERT_GT(steps, 0u);
  const Outcome again = run({});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr(fmt::format("replacing the unfinished run in {} ({} step",
                                               (folder_ / "run").string(), steps)));
  EXPECT_EQ(read_json_lines(folder_ / "run" / "metrics.jsonl").size(), 6u);
}

TEST_F(RunFilesTest, of_two_runs_started_together_in_one_folder_one_is_refused) {
  for (const char* workers : {"1", "2"}) {
    const fs::path shared = folder_ / "shared" / workers;
    const std::vector<std::string> words =
        train_arguments(prefix_, shared, {"train.steps=60", "--workers", workers});
    Program first(words), second(words);
    Outcome outcomes[] = {first.wait(), second.wait()};
    if (outcomes[0].exit_code != 0) std::swap(outcomes[0], outcomes[1]);
    EXPECT_EQ(outcomes[0].exit_code, 0) << outcomes[0].err;
    EXPECT_EQ(outcomes[1].exit_code, 2) << outcomes[1].out;
    EXPECT_THAT(outcomes[1].err,
                AnyOf(HasSubstr(shared.string() + ": another run is writing here"),
                      HasSubstr("holds a run already")));  // it came when the other was done
    expect_one_line(outcomes[1].err);
    EXPECT_EQ(read_json_lines(shared / "metrics.jsonl").size(), 60u);
    EXPECT_EQ(files_below(shared).size(), 4u);
  }
}

TEST_F(RunFilesTest, what_lies_on_the_machine_of_another_rank_is_no_matter) {
  train("theirs", {"train.steps=1"});
  const std::string port = free_port();
  Program second(train_arguments(prefix_, folder_ / "theirs", {"comm.grace_s=1"}),
                 torchrun_environment(1, 2, port));
  Program first(train_arguments(prefix_, folder_ / "run", {"comm.grace_s=1"}),
                torchrun_environment(0, 2, port));
  const Outcome outcome = first.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(second.wait().exit_code, 0);
  EXPECT_EQ(read_json_lines(folder_ / "theirs" / "metrics.jsonl").size(), 1u);
}

TEST_F(RunFilesTest, ranks_that_are_restarted_take_their_unfinished_run_again) {
  for (int restart = 0; restart < 2; ++restart) {
    const std::string port = free_port();
    const std::vector<std::string> words =
        train_arguments(prefix_, folder_ / "run", {"comm.grace_s=1", "train.steps=1000000"});
    Program first(words, torchrun_environment(0, 2, port));
    Program second(words, torchrun_environment(1, 2, port));
    const Stopwatch watch;
    while (read_json_lines(folder_ / "run" / "metrics.jsonl").size() < 2 && watch.seconds() < 60)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_LT(watch.seconds(), 60) << first.wait(1).err;
    first.signal_group(SIGKILL);
    second.signal_group(SIGKILL);
    first.wait();
    second.wait();
    fs::resize_file(folder_ / "run" / "metrics.jsonl", 0);
  }
}

TEST_F(RunFilesTest, weights_are_saved_when_the_last_validation_loss_is_not_finite) {
  for (const char* workers : {"1", "2"}) {
    const Outcome outcome = run({"train.steps=1", "optimizer.lr=1e9", "optimizer.warmup_steps=0",
                                 "train.overwrite=true", "--workers", workers});
    EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("step 1: the validation loss is not finite"),
                                   HasSubstr("the weights are saved as they are in")));
    expect_one_line(outcome.err);
    EXPECT_EQ(files_below(folder_ / "run").size(), 4u);
    EXPECT_THAT(outcome.out, HasSubstr("\nSaved\n"));
  }
}

TEST_F(RunFilesTest, kept_keys_that_do_not_fit_a_later_batch_travel_again) {
  const Training kept = train("kept", {"--workers", "2", "exchange.keys=keep"});
  // The first batch fits; a later one does not.
  const Outcome outcome =
      run({"--workers", "2", "exchange.keys=keep", "plan.max_memory_gib=0.00252"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("has no room for kept keys"));
  expect_one_line(outcome.err);
  expect_same_bits(read_training(folder_ / "run"), kept);
  const std::vector<Json> lines = read_json_lines(folder_ / "run" / "metrics.jsonl");
  EXPECT_EQ(lines.front().at("nano_batches_redispatched"), 0);
  EXPECT_TRUE(std::ranges::any_of(
      lines, [](const Json& line) { return line.at("nano_batches_redispatched") > 0; }));
}

}  // namespace
}  // namespace distca::testing
