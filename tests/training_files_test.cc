// `distca train` from end to end: what a run may replace, and what is left of one that fails.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "distca/batch/indexed_dataset.h"
#include "distca/checkpoint/folder.h"
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
  Outcome run(const Words& more) const { return run_distca(arguments(more)); }
  std::map<std::string, std::string> contents() const { return read_files(run_); }
};

TEST_F(RunFilesTest, a_permission_is_not_recorded_so_a_runs_own_configuration_deletes_nothing) {
  train("run", {"train.overwrite=true"});
  const auto before = contents();
  EXPECT_THAT(before.at("config.toml"), HasSubstr("\noverwrite = false\n"));
  const std::string config = run_ / "config.toml";
  for (const char* workers : {"1", "2"}) {
    EXPECT_THAT(
        refusal({"train", "--config", config, "train.steps=3", "--workers", workers}),
        AllOf(HasSubstr("holds a run already (6 steps, 20"), HasSubstr("train.overwrite=true")));
    EXPECT_EQ(contents(), before);
  }
  EXPECT_THAT(succeed({"train", "--config", config, "train.overwrite=true"}).out,
              HasSubstr("replacing the run in " + run_.string() + " (6 steps, 20"));
  EXPECT_EQ(contents().at("model.safetensors"), before.at("model.safetensors"));
  EXPECT_EQ(contents().at("config.toml"), before.at("config.toml"));
}

TEST_F(RunFilesTest, a_run_that_fails_leaves_the_weights_that_it_was_to_replace) {
  train("run", {});
  const auto before = contents();
  const Outcome failed = run({"train.overwrite=true", "optimizer.lr=1e9", "--workers", "2",
                              "batch.max_document_tokens=256"});
  EXPECT_EQ(failed.exit_code, 3) << failed.err;
  const auto after = contents();
  EXPECT_EQ(after.size(), 12u) << "and a checkpoint of two ranks that is marked";
  EXPECT_TRUE(after.contains(".older_weights")) << "nobody takes them for the present run's";
  EXPECT_EQ(after.at("model.safetensors"), before.at("model.safetensors"));
  EXPECT_EQ(after.at("config.json"), before.at("config.json"));
  EXPECT_NE(after.at("metrics.jsonl"), before.at("metrics.jsonl"));
  EXPECT_EQ(run({}).exit_code, 2) << "it would have replaced weights";
  EXPECT_EQ(contents(), after);
}

TEST_F(RunFilesTest, a_folder_without_weights_and_checkpoints_is_free_to_take) {
  program_.emplace(arguments({"train.steps=1000000"}));
  ASSERT_TRUE(wait_until([&] { return metrics().size() >= 2; }));
  program_->signal_group(SIGKILL);
  program_->wait();
  EXPECT_THAT(files_below(run_), ::testing::ElementsAre("config.toml", "metrics.jsonl"));
  const std::string replaces =
      fmt::format("replacing the unfinished run in {} ({} steps", run_.string(), metrics().size());
  EXPECT_THAT(succeed(arguments()).out, HasSubstr(replaces));
  EXPECT_EQ(metrics().size(), 6u);
}

TEST_F(RunFilesTest, a_folder_with_checkpoints_holds_a_run) {
  const Outcome failed = run({"optimizer.lr=1e9"});
  EXPECT_EQ(failed.exit_code, 3) << failed.err;
  const auto before = contents();
  EXPECT_FALSE(before.contains("model.safetensors"));
  for (const char* workers : {"1", "2"}) {
    EXPECT_THAT(refusal(arguments({"--workers", workers})),
                AllOf(HasSubstr(run_.string() + " holds a run with checkpoints ("),
                      HasSubstr("go on from them with --resume")));
    EXPECT_EQ(contents(), before);
  }
}

TEST_F(RunFilesTest, of_two_runs_started_together_in_one_folder_one_is_refused) {
  for (const char* workers : {"1", "2"}) {
    const std::string shared = std::string("shared_") + workers;
    const Words words = arguments({"train.steps=60", "--workers", workers}, shared);
    Program first(words), second(words);
    Outcome outcomes[] = {first.wait(), second.wait()};
    if (outcomes[0].exit_code != 0) std::swap(outcomes[0], outcomes[1]);
    EXPECT_EQ(outcomes[0].exit_code, 0) << outcomes[0].err;
    EXPECT_THAT(error_line(outcomes[1], 2),
                AnyOf(HasSubstr((folder_ / shared).string() + ": another run is writing here"),
                      HasSubstr("holds a run already")));  // it came when the other was done
    EXPECT_EQ(metrics(shared).size(), 60u);
    EXPECT_EQ(files_below(folder_ / shared).size(), 7u);
  }
}

TEST_F(RunFilesTest, what_lies_on_the_machine_of_another_rank_is_no_matter) {
  train("theirs", {"train.steps=1"});
  const Words one_second = {"comm.grace_s=1"};
  for (const Outcome& outcome :
       run_torchrun(arguments(one_second), arguments(one_second, "theirs")))
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(metrics("theirs").size(), 1u);
}

TEST_F(RunFilesTest, ranks_that_are_restarted_take_their_unfinished_run_again) {
  for (int restart = 0; restart < 2; ++restart) {
    const std::string port = free_port();
    const Words words = arguments({"comm.grace_s=1", "train.steps=1000000"});
    Program first(words, torchrun_environment(0, 2, port));
    Program second(words, torchrun_environment(1, 2, port));
    EXPECT_TRUE(wait_until([&] { return metrics().size() >= 2; })) << first.wait(1).err;
    first.signal_group(SIGKILL);
    second.signal_group(SIGKILL);
    first.wait();
    second.wait();
    fs::resize_file(run_ / "metrics.jsonl", 0);
  }
}

TEST_F(RunFilesTest, another_tokenizer_in_the_folder_is_left_alone_unless_asked) {
  write_file_atomically(run_ / "tokenizer.json", "mine");
  const Outcome kept = run({"train.steps=1"});
  EXPECT_EQ(kept.exit_code, 0);
  EXPECT_THAT(kept.err, HasSubstr("warning: " + (run_ / "tokenizer.json").string() +
                                  ": there is another one already, which is left alone without "));
  EXPECT_EQ(read_file(run_ / "tokenizer.json"), "mine");
  EXPECT_EQ(run({"train.steps=1", "train.overwrite=true"}).err, "");
  EXPECT_EQ(Json::parse(read_file(run_ / "tokenizer.json")).at("model").at("vocab").size(), 256u);
}

TEST_F(RunFilesTest, a_run_that_replaces_another_one_leaves_no_tokenizer_of_it) {
  train("run", {});
  const std::string other = folder_ / "other";
  IndexedDatasetWriter writer(other, TokenType::kUint16);  // whose tokenizer nobody knows
  for (int i = 0; i < 8; ++i) writer.add_document(std::vector<int32_t>(300, 7 + i));
  writer.finish();
  const Outcome replaced = run({"data.prefix=" + other, "train.overwrite=true"});
  EXPECT_THAT(replaced.err,
              HasSubstr(run_.string() +
                        ": tokenizer.json, tokenizer_config.json belonged to the run before: "
                        "renamed to *.older\n"));
  EXPECT_FALSE(fs::exists(run_ / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(run_ / "generation_config.json"));
}

TEST_F(RunFilesTest, a_permission_holds_until_the_replacement_is_whole) {
  train("run", {});
  write_file_atomically(run_ / "tokenizer.json", "of the run before");
  program_.emplace(arguments({"train.overwrite=true", "train.steps=100000",
                              "checkpoint.every_steps=2", "optimizer.decay_steps=100"}));
  ASSERT_TRUE(wait_until([&] { return !complete_checkpoints(run_).empty(); }));
  kill(program_->pid(), SIGTERM);
  program_->wait();
  const int64_t stopped = complete_checkpoints(run_).back().step;
  EXPECT_EQ(read_file(run_ / "tokenizer.json"), "of the run before");
  const Outcome resumed =
      run({fmt::format("train.steps={}", stopped + 1), "optimizer.decay_steps=100", "--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_NE(read_file(run_ / "tokenizer.json"), "of the run before");
}

TEST_F(RunFilesTest, weights_are_saved_when_the_last_validation_loss_is_not_finite) {
  for (const char* workers : {"1", "2"}) {
    const Outcome outcome = run({"train.steps=1", "optimizer.lr=1e9", "optimizer.warmup_steps=0",
                                 "train.overwrite=true", "--workers", workers});
    EXPECT_THAT(error_line(outcome, 3),
                AllOf(HasSubstr("step 1: the validation loss is not finite"),
                      HasSubstr("the weights are saved as they are in")));
    EXPECT_EQ(files_below(run_).size(), 7u);
    EXPECT_THAT(outcome.out, HasSubstr("\nSaved\n"));
  }
}

TEST_F(RunFilesTest, kept_keys_that_do_not_fit_a_later_batch_travel_again) {
  const Words words = {"--workers", "2", "exchange.keys=keep", "batch.seed=6"};
  const Training kept = train("kept", words);
  // The first batch fits; a later one does not.
  const Outcome outcome = succeed(arguments(joined(words, {"plan.max_memory_gib=0.002"})));
  EXPECT_THAT(outcome.err, HasSubstr("has no room for kept keys"));
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  expect_same_bits(read_training("run"), kept);
  const std::vector<Json> lines = metrics();
  EXPECT_EQ(lines.front().at("nano_batches_redispatched"), 0);
  EXPECT_TRUE(std::ranges::any_of(
      lines, [](const Json& line) { return line.at("nano_batches_redispatched") > 0; }));
}

}  // namespace
}  // namespace distca::testing
