// Runs over several data sets with weights: the same for every number of workers, and bit for bit
// when they go on from a checkpoint. What a blend's batches are: distca/batch/data_blend_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/file.h"
#include "tests/checkpoint_runs.h"

namespace distca::testing {
namespace {

using ::testing::HasSubstr;

class BlendTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    // A second set, of fewer tokens than a run takes of it: it is in a later epoch at the end.
    for (int file = 0; file < 6; ++file) {
      write_file_atomically(folder_ / "other" / fmt::format("{}.txt", file),
                            std::string(static_cast<size_t>(100 + 90 * file), 'a' + file));
    }
    succeed({"data", "prepare", "--text", folder_ / "other", "--out", folder_ / "data" / "other"});
  }
  std::string blend(const std::string& first, const std::string& second) const {
    return fmt::format("data.prefix={} {} {} {}", first, prefix_.string(), second,
                       (folder_ / "data" / "other").string());
  }
};

TEST_F(BlendTest, every_number_of_workers_trains_the_same_model) {
  const auto on = [&](const char* workers, const Words& more = {}) {
    return joined(
        {blend("0.6", "0.4"), "model.dtype=float64", "comm.backend=threads", "--workers", workers},
        more);
  };
  const Training one = train("one", on("1"));
  EXPECT_EQ(one.validation.size(), 2u);
  for (const char* workers : {"2", "3"})
    expect_same_result(train(workers, on(workers)), one, workers);
  const Training other = train("other_shares", joined(on("1"), {blend("0.5", "0.5")}));
  EXPECT_NE(other.losses, one.losses);
}

TEST_F(BlendTest, a_plan_of_a_blend_is_of_the_first_documents_of_its_training) {
  const std::string shares = blend("0.6", "0.4");
  const Words more = {"batch.nano_batch_tokens=4096", "batch.max_document_tokens=2048",
                      "batch.seed=3", "--workers", "2"};
  const auto before = [&](const std::string& data) {
    Words words = arguments(joined(more, {data}));
    words[0] = "plan";
    return Json::parse(succeed(joined(words, {"--summary-json"})).out)
        .at("imbalance_before")
        .get<double>();
  };
  train("run", joined(more, {shares}));
  EXPECT_GT(before(shares), 1.01);
  EXPECT_EQ(before(shares), metrics("run").at(0).at("imbalance_before"));
  EXPECT_NE(before("data.prefix=" + prefix_.string()), before(shares));
}

TEST_F(BlendTest, a_run_goes_on_within_a_blend_bit_for_bit) {
  const Words words = {blend("3", "2"), "checkpoint.every_steps=1", "checkpoint.keep_last=0",
                       "--workers", "2"};
  const Training straight = train("run", words);
  const SavedState end = state(6);
  EXPECT_EQ(end.trainer.at("data").at("sets").size(), 2u);
  EXPECT_GT(end.trainer.at("data").at("sets").at(1).at("epoch"), 0);
  for (const int64_t step : {1, 4}) {
    const std::string name = fmt::format("after_{}", step);
    const Outcome outcome =
        succeed(arguments(joined(words, {"--resume", checkpoint(step).string()}), name));
    EXPECT_THAT(outcome.out, HasSubstr("\nit goes on bit for bit\n"));
    const Training got = read_training(name);
    EXPECT_EQ(got.losses,
              std::vector<double>(straight.losses.begin() + step, straight.losses.end()));
    EXPECT_EQ(got.weights, straight.weights);
    expect_same_state(state(6, name), end);
  }
}

TEST_F(BlendTest, other_shares_do_not_go_on) {
  train("run", {blend("3", "2"), "checkpoint.every_steps=2"});
  EXPECT_THAT(refusal(arguments({blend("2", "3"), "--resume"})),
              HasSubstr("--resume: data.prefix holds 2/5 of the tokens from 40 documents, "));
  // Shares of 0.6 and 0.4 are those of 3 and 2, so the run goes on.
  EXPECT_THAT(resume({blend("0.6", "0.4"), "train.steps=7", "checkpoint.every_steps=2"}).out,
              HasSubstr("going on after step 6"));
}

}  // namespace
}  // namespace distca::testing
