// Runs that go on from a checkpoint: with other workers, after damage, with changed keys, and after
// steps that must not reach the weights. What is refused: tests/bad_input_runs.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "distca/base/file.h"
#include "tests/checkpoint_runs.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class OtherWorkers : public CheckpointTest {};

TEST_F(OtherWorkers, hold_the_result_of_the_straight_run) {
  const Words words = {"model.dtype=float64",      "train.steps=8",
                       "checkpoint.every_steps=2", "checkpoint.keep_last=0",
                       "train.validation_every=2", "--workers"};
  const auto on = [&](const char* workers) { return joined(words, {workers}); };
  const Training straight = train("straight", on("2"));
  struct Part {
    const char *name, *from, *workers;
    int64_t after;
    const char* was;  // how many workers the part before had
  };
  for (const Part& part : {Part{"three", "straight", "3", 2, "2"},
                           {"one", "three", "1", 4, "3"},
                           {"back", "one", "2", 6, "1"}}) {
    const Outcome outcome = succeed(arguments(
        joined(on(part.workers), {"--resume", checkpoint(part.after, part.from)}), part.name));
    EXPECT_THAT(outcome.out,
                HasSubstr(fmt::format("\nit goes on to rounding, not bit for bit: the number of "
                                      "workers was {} and is {}\n",
                                      part.was, part.workers)));
    // The run has a folder of its own: the steps before lie in the other run's.
    const Training got = read_training(part.name);
    const auto tail = [&](const std::vector<double>& all) {
      return std::vector<double>(all.end() - (8 - part.after), all.end());
    };
    expect_near(got.losses, tail(straight.losses), 1e-10, part.name);
    expect_near(got.norms, tail(straight.norms), 1e-10, part.name);
    expect_near_state(checkpoint(8, part.name), checkpoint(8, "straight"));
  }
}

/// Damage to one file of a checkpoint, and the message that it leads to.
struct Damage {
  const char* name;
  const char* file;
  std::function<void(const fs::path& file)> damage;
  const char* words;  // part of the error message
};
std::string damage_name(const ::testing::TestParamInfo<Damage>& info) { return info.param.name; }

void shorten(const fs::path& file, uintmax_t bytes) {
  fs::resize_file(file, fs::file_size(file) - bytes);
}

void flip_a_bit(const fs::path& file) {
  std::string bytes = read_file(file);
  bytes[bytes.size() - 100] ^= 4;
  write_file_atomically(file, bytes);
}

class Damaged : public CheckpointTest, public ::testing::WithParamInterface<Damage> {};

TEST_P(Damaged, the_checkpoint_before_it_is_taken_and_a_line_says_why) {
  const Damage& how = GetParam();
  const Words words = {"--workers", "2", "comm.backend=threads", "checkpoint.every_steps=2"};
  const Training straight = train("run", words);
  const std::string file = checkpoint(6) / how.file;
  how.damage(file);
  const auto before = read_files(run_);

  const std::string named = "--resume=" + checkpoint(6).string();
  EXPECT_THAT(refusal(arguments(joined(words, {named}))),
              AllOf(StartsWith(file), HasSubstr(how.words)));
  EXPECT_THAT(refusal(arguments(joined(words, {named}), "other")), StartsWith(file));
  EXPECT_EQ(read_files(run_), before);
  EXPECT_FALSE(fs::exists(folder_ / "other"));

  const Outcome resumed = resume(words);
  EXPECT_THAT(resumed.err, AllOf(HasSubstr("warning: " + file), HasSubstr(how.words),
                                 EndsWith("; the checkpoint before it is looked at\n")));
  EXPECT_EQ(std::ranges::count(resumed.err, '\n'), 1) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("\ngoing on after step 4 from "));
  expect_same_bits(read_training("run"), straight);
  EXPECT_THAT(saved(), ElementsAre(2, 4, 6));
  CheckpointReader(checkpoint(6)).check();
}

INSTANTIATE_TEST_SUITE_P(
    , Damaged,
    ::testing::Values(
        Damage{"cut", "rank_1.safetensors", [](const fs::path& file) { shorten(file, 1000); },
               ": not a whole safetensors file: it has "},
        Damage{"bit", "rank_0.safetensors", flip_a_bit, " is damaged: its bytes have the hash "},
        Damage{"missing", "rank_1.safetensors", [](const fs::path& file) { fs::remove(file); },
               ": cannot be read: No such file"},
        Damage{"index_cut", "checkpoint.json", [](const fs::path& file) { shorten(file, 10); },
               " is not JSON"},
        Damage{"index_missing", "checkpoint.json", [](const fs::path& file) { fs::remove(file); },
               ": cannot be read: No such file"}),
    damage_name);

class ResumeTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    train("run", {"train.steps=4", "checkpoint.every_steps=2"});
  }
  /// The output of a run that goes on with these keys to step 6.
  std::string said(const Words& more) const {
    return resume(joined({"train.steps=6", "checkpoint.every_steps=2"}, more)).out;
  }
  static constexpr const char* kLonger =
      "\ntrain.steps was 4 and is 6 from step 5 on: the learning rate follows the new length from "
      "there\n";
};

TEST_F(ResumeTest, more_steps_follow_the_new_learning_rate) {
  EXPECT_THAT(said({}),
              AllOf(HasSubstr(kLonger), HasSubstr("\notherwise it goes on bit for bit\n")));
  const std::vector<Json> lines = metrics();
  ASSERT_EQ(lines.size(), 6u);
  train("straight", {});
  EXPECT_NE(lines[3].at("lr"), metrics("straight")[3].at("lr"));
  for (size_t i = 4; i < 6; ++i) EXPECT_EQ(lines[i].at("lr"), metrics("straight")[i].at("lr"));
}

TEST_F(ResumeTest, another_learning_rate_is_said) {
  EXPECT_THAT(said({"optimizer.lr=2e-4"}),
              AllOf(HasSubstr("\noptimizer.lr was 0.001 and is 0.0002 from step 5 on\n"),
                    HasSubstr(fmt::format("{}otherwise it goes on bit for bit\n", kLonger))));
}

TEST_F(ResumeTest, a_decay_length_of_its_own_leaves_the_learning_rate_alone) {
  const Words linear = {"optimizer.schedule=linear", "optimizer.decay_steps=9"};
  train("decays", joined({"train.steps=4", "checkpoint.every_steps=2"}, linear));
  const Words longer = joined({"train.steps=6", "checkpoint.every_steps=2"}, linear);
  EXPECT_THAT(resume(longer, "decays").out,
              AllOf(HasSubstr("\ntrain.steps was 4 and is 6 from step 5 on\n"),
                    HasSubstr("\notherwise it goes on bit for bit\n")));
  EXPECT_THAT(said(linear),
              AllOf(HasSubstr("\noptimizer.schedule was 'cosine' and is 'linear' from step 5 on\n"),
                    HasSubstr("\noptimizer.decay_steps was 0 and is 9 from step 5 on\n")));
  for (size_t i = 4; i < 6; ++i)
    EXPECT_EQ(metrics()[i].at("lr"), metrics("decays")[i].at("lr")) << "the same from step 5 on";
}

TEST_F(ResumeTest, another_scheduler_goes_on_to_rounding) {
  EXPECT_THAT(
      said({"plan.scheduler=greedy"}),
      HasSubstr("\notherwise it goes on to rounding, not bit for bit: plan.scheduler was "));
}

TEST_F(ResumeTest, plans_that_follow_measured_times_go_on_to_rounding) {
  const Words measured = {"train.deterministic=false", "servers.reweight=true"};
  EXPECT_THAT(said(measured), HasSubstr("servers.reweight was false and is true;"));
  EXPECT_THAT(resume(joined({"train.steps=8", "checkpoint.every_steps=2"}, measured)).out,
              HasSubstr("\notherwise it goes on to rounding, not bit for bit: servers.reweight is "
                        "true\n"));
}

TEST_F(ResumeTest, a_path_may_end_in_a_slash) {
  const std::string path = checkpoint(2).string() + "/";
  const Words words = {"train.steps=4", "checkpoint.every_steps=2", "--resume", path};
  EXPECT_THAT(succeed(arguments(words)).out, HasSubstr("\ngoing on after step 2 from "));
  EXPECT_EQ(metrics().size(), 4u) << "it goes on in its own folder";
}

TEST_F(ResumeTest, keys_of_which_nothing_depends_are_not_spoken_of) {
  EXPECT_THAT(said({"checkpoint.keep_last=7", "comm.timeout_s=50", "train.validation_every=2"}),
              AllOf(HasSubstr("\notherwise it goes on bit for bit\n"), Not(HasSubstr("keep_last")),
                    Not(HasSubstr("comm.")), Not(HasSubstr("validation_every"))));
}

TEST_F(ResumeTest, a_run_that_is_done_saves_its_weights_and_trains_nothing) {
  const std::string weights = read_file(run_ / "model.safetensors");
  fs::remove(run_ / "model.safetensors");
  fs::remove(run_ / "config.json");
  EXPECT_THAT(resume({"train.steps=4", "checkpoint.every_steps=2"}).out,
              HasSubstr(fmt::format("Nothing was left to train: all 4 steps were done\n"
                                    "  validation loss {:.3f} nats a token\n",
                                    metrics().back().at("validation_loss").get<double>())));
  EXPECT_TRUE(read_file(run_ / "model.safetensors") == weights);
  EXPECT_EQ(metrics().size(), 4u);
}

TEST_F(ResumeTest, an_older_checkpoint_cuts_the_metrics_and_the_newer_go_when_one_is_complete) {
  const Training straight = read_training("run");
  const Outcome outcome =
      succeed(arguments({"train.steps=4", "checkpoint.every_steps=2", "--resume", checkpoint(2)}));
  EXPECT_THAT(outcome.out, HasSubstr("\ngoing on after step 2 from "));
  expect_same_bits(read_training("run"), straight);
  EXPECT_THAT(saved(), ElementsAre(2, 4));
  EXPECT_FALSE(fs::exists(run_ / "checkpoints.old"));
}

TEST_F(ResumeTest, overwriting_removes_no_checkpoint_before_a_new_one_is_complete) {
  const auto before = read_files(run_ / "checkpoints");
  const Words words = {"train.steps=1000000", "train.overwrite=true", "train.validation_every=0"};
  program_.emplace(arguments(words));  // it saves no checkpoint
  ASSERT_TRUE(wait_for_steps(5)) << "one more than the run before had";
  ASSERT_NO_FATAL_FAILURE(kill_all());
  EXPECT_TRUE(read_files(run_ / "checkpoints.old") == before);
  train("run", {"train.steps=4", "train.overwrite=true", "checkpoint.every_steps=3"});
  EXPECT_THAT(saved(), ElementsAre(3, 4));
  EXPECT_FALSE(fs::exists(run_ / "checkpoints.old"));
}

TEST_F(CheckpointTest, the_last_ones_and_multiples_are_kept) {
  const Words words = {"train.steps=10", "train.validation_every=0", "checkpoint.every_steps=2"};
  train("run", joined(words, {"checkpoint.keep_last=2", "checkpoint.keep_every=4"}));
  EXPECT_THAT(saved(), ElementsAre(4, 8, 10));
  train("all", joined(words, {"checkpoint.keep_last=0"}));
  EXPECT_THAT(saved("all"), ElementsAre(2, 4, 6, 8, 10));
}

/// Two workers and a server, which decide alike.
class BadSteps : public CheckpointTest {
 protected:
  Words words(const Words& more) const {
    return joined(
        {"--workers", "2", "servers.dedicated=1", "train.steps=40", "train.validation_every=0"},
        more);
  }
  std::vector<int64_t> skipped(const std::string& name = "run") const {
    std::vector<int64_t> steps;
    for (const Json& line : metrics(name)) {
      if (line.value("skipped", false)) steps.push_back(line.at("step"));
    }
    return steps;
  }
};

TEST_F(BadSteps, the_state_before_one_is_saved_and_goes_on_as_if_it_had_not_been_looked_at) {
  // The first 20 steps are never spikes; the next is above half of their median.
  const Outcome outcome = run_distca(arguments(words({"train.spike_factor=0.5"})));
  EXPECT_THAT(error_line(outcome, 3),
              AllOf(StartsWith("step 21: the gradient norm "),
                    HasSubstr(" times the median of the steps before ("),
                    HasSubstr("lower optimizer.lr (now 0.001)"),
                    EndsWith("; the state after step 20 is saved, --resume goes on from it\n")));
  EXPECT_THAT(saved(), ElementsAre(20));
  EXPECT_EQ(metrics().size(), 21u);
  EXPECT_THAT(skipped(), ElementsAre(21)) << "it did not reach the weights";
  const Training straight = train("straight", words({}));
  EXPECT_THAT(resume(words({})).out,
              AllOf(HasSubstr("\ngoing on after step 20 from "),
                    HasSubstr("\ntrain.spike_factor was 0.5 and is 0.0 from step 21 on\n")));
  expect_same_bits(read_training("run"), straight);
}

TEST_F(BadSteps, numbers_that_are_not_finite_stop_it_too) {
  const Outcome outcome = run_distca(arguments(words({"optimizer.lr=1e9"})));
  const std::string line = error_line(outcome, 3);
  EXPECT_THAT(line, AllOf(HasSubstr("is not finite; lower optimizer.lr (now 1000000000); the state "
                                    "after step "),
                          HasSubstr(" is saved, --resume goes on from it")));
  ASSERT_EQ(saved().size(), 1u);
  EXPECT_THAT(line, StartsWith(fmt::format("step {}: ", saved().back() + 1)));
  EXPECT_EQ(metrics().size(), static_cast<size_t>(saved().back() + 1));
}

TEST_F(BadSteps, a_spoilt_state_evicts_no_good_one_and_is_found_out_when_it_fails_again) {
  const Words decay = words({"optimizer.decay_steps=40", "data.validation_fraction=0"});
  const Words keep_one = joined(decay, {"checkpoint.every_steps=10", "checkpoint.keep_last=1"});
  train("run", joined(keep_one, {"train.steps=20"}));
  EXPECT_THAT(saved(), ElementsAre(10, 20)) << "nothing has computed with the last";
  const std::string good = checkpoint(20).string();
  const auto expect_spoilt = [&](const Words& more, const std::string& says) {
    const Outcome outcome = run_distca(arguments(joined(keep_one, joined(more, {"--resume"}))));
    EXPECT_THAT(error_line(outcome, 3), HasSubstr(says));
    EXPECT_THAT(saved(), AllOf(Contains(20), Contains(21)));
  };
  // Step 21 makes weights that are finite, and so large that nothing else is.
  expect_spoilt({"optimizer.lr=1e25"},
                "; lower optimizer.lr (now 1e+25); the state after step 21 is saved, --resume goes "
                "on from it; if that fails at once, --resume " +
                    good + " goes on from the one before");
  expect_spoilt({},
                "step 22: the gradient norm is not finite; no step since --resume was good, so "
                "either the state that it went on from is spoilt, ");
  expect_spoilt({"train.bad_step=skip", "train.max_skipped_steps=3"},
                "; --resume " + good + " goes on from an older one");
  const Training straight = train("straight", decay);
  succeed(arguments(joined(keep_one, {"--resume", good})));
  expect_same_bits(read_training("run"), straight);
  EXPECT_THAT(saved(), ElementsAre(30, 40));
}

TEST_F(BadSteps, a_state_that_nothing_has_computed_with_evicts_no_older_one) {
  const Words keep_one =
      words({"checkpoint.every_steps=1", "checkpoint.keep_last=1", "data.validation_fraction=0"});
  train("run", joined(keep_one, {"train.steps=5"}));
  EXPECT_THAT(saved(), ElementsAre(4, 5)) << "no step and no validation came after the last";
  const std::string good = checkpoint(5).string();
  // The update of step 6 makes weights that are finite, and so large that nothing else is.
  const Words spoilt = joined(keep_one, {"optimizer.lr=1e25", "--resume", good});
  succeed(arguments(joined(spoilt, {"train.steps=6"})));
  EXPECT_THAT(saved(), ElementsAre(4, 5, 6)) << "its end";
  for (const char* async : {"checkpoint.async=true", "checkpoint.async=false"}) {
    EXPECT_EQ(run_distca(arguments(joined(spoilt, {async}))).exit_code, 3);
    EXPECT_THAT(saved(), ElementsAre(4, 5, 6)) << async;
  }
  train("validated",
        words({"checkpoint.every_steps=1", "checkpoint.keep_last=1", "train.steps=5"}));
  EXPECT_THAT(saved("validated"), ElementsAre(5)) << "a validation has computed with it";
}

TEST_F(BadSteps, checkpoints_made_while_steps_are_skipped_evict_nothing) {
  train("run", words({"train.steps=20", "checkpoint.every_steps=10", "checkpoint.keep_last=1"}));
  const Outcome outcome = run_distca(
      arguments(words({"optimizer.lr=1e25", "train.bad_step=skip", "train.max_skipped_steps=5",
                       "checkpoint.every_steps=1", "checkpoint.keep_last=1", "--resume"})));
  EXPECT_THAT(error_line(outcome, 3),
              HasSubstr("; 5 steps in a row were skipped; the state after"));
  EXPECT_THAT(saved(), AllOf(Contains(20), Contains(26)));
}

TEST_F(BadSteps, skipped_ones_are_counted_and_a_resumed_run_skips_the_same) {
  const Words skip =
      words({"train.bad_step=skip", "train.spike_factor=1.01", "train.max_skipped_steps=40",
             "checkpoint.every_steps=10", "checkpoint.keep_last=0"});
  const Training straight = train("straight", skip);
  EXPECT_THAT(skipped("straight"), Not(IsEmpty()));
  EXPECT_LT(skipped("straight").size(), 20u);
  EXPECT_EQ(metrics("straight").size(), 40u);
  EXPECT_EQ(state(40, "straight").updates, 40 - static_cast<int64_t>(skipped("straight").size()));
  succeed(arguments(joined(skip, {"--resume", checkpoint(30, "straight")})));
  EXPECT_TRUE(read_training("run").weights == straight.weights);
  expect_same_state(state(40), state(40, "straight"));
  std::vector<int64_t> later = skipped("straight");
  std::erase_if(later, [](int64_t step) { return step <= 30; });
  EXPECT_EQ(skipped(), later);
}

TEST_F(BadSteps, validation_after_a_skipped_one_uses_its_own_batches) {
  // From some step on, no gradient is finite any more; the loss is: it is that of equal logits.
  succeed(arguments(words({"optimizer.lr=1e9", "train.bad_step=skip", "train.max_skipped_steps=40",
                           "train.validation_every=10"})));
  const std::vector<int64_t> all = skipped();
  ASSERT_THAT(all, Contains(10));
  EXPECT_EQ(all.back() - all.front() + 1, static_cast<int64_t>(all.size()))
      << "none was good again";
  EXPECT_EQ(all.back(), 40);
  const std::vector<Json> lines = metrics();
  for (const size_t step : {10, 20, 30, 40})
    EXPECT_NEAR(lines.at(step - 1).at("validation_loss"), std::log(256), 1e-3) << step;
}

TEST_F(BadSteps, the_state_before_the_first_one_is_saved_in_the_runs_own_folder) {
  train("other", words({"train.steps=20", "checkpoint.every_steps=20"}));
  const Words from_other = {"--resume=" + checkpoint(20, "other").string(),
                            "train.spike_factor=0.5"};
  const Outcome outcome = run_distca(arguments(words(from_other)));
  EXPECT_THAT(error_line(outcome, 3),
              HasSubstr("; no step since --resume was good, so either the state that it went on "
                        "from is spoilt, which a lower optimizer.lr (now 0.001) avoids, or a batch "
                        "is bad, which train.bad_step=skip leaves out; there is no older "));
  EXPECT_THAT(saved(), ElementsAre(20));
  expect_same_state(state(20), state(20, "other"));
}

TEST_F(BadSteps, too_many_in_a_row_end_it) {
  const Outcome outcome = run_distca(arguments(
      words({"train.bad_step=skip", "train.spike_factor=0.5", "train.max_skipped_steps=3"})));
  EXPECT_THAT(error_line(outcome, 3),
              AllOf(StartsWith("step 24: "), HasSubstr("; 3 steps in a row were skipped; the state "
                                                       "after step 23 is saved")));
  EXPECT_THAT(skipped(), ElementsAre(21, 22, 23, 24));
  EXPECT_THAT(saved(), ElementsAre(23));
  const SavedState last = state(23);
  EXPECT_EQ(last.updates, 20);
  EXPECT_EQ(last.trainer.at("skipped_in_row"), 3);
}

}  // namespace
}  // namespace distca::testing
