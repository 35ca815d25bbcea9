// `distca evaluate`: the loss over all documents of a data set, once each, is the same however many
// ranks compute it, wherever the weights lie, and nothing is written.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "distca/batch/indexed_dataset.h"
#include "tests/run_command.h"
#include "tests/training_testing.h"

namespace distca::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class EvaluateTest : public TrainingTest {
 protected:
  Words evaluate(const std::filesystem::path& source, const Words& more = {}) const {
    return joined({"evaluate", source.string(), "--data", prefix_.string()}, more);
  }
  Json result(const std::filesystem::path& source, const Words& more = {}) const {
    const Outcome outcome = succeed(joined(evaluate(source, more), {"--json"}));
    EXPECT_EQ(outcome.err, "");
    return Json::parse(outcome.out);
  }
  /// A run of six steps, whose model is made for the longest document.
  void train_long(const Words& more = {}) const {
    train("run", joined({"model.max_position_embeddings=4096"}, more));
  }
};

void expect_same(const Json& got, const Json& want, double bound, const std::string& name) {
  EXPECT_EQ(got.at("targets"), want.at("targets")) << name;
  EXPECT_NEAR(got.at("loss").get<double>(), want.at("loss").get<double>(),
              bound * want.at("loss").get<double>())
      << name;
  ASSERT_EQ(got.at("by_position").size(), want.at("by_position").size()) << name;
  for (size_t i = 0; i < want.at("by_position").size(); ++i) {
    const Json &band = got.at("by_position")[i], &same = want.at("by_position")[i];
    EXPECT_EQ(band.at("targets"), same.at("targets")) << name;
    EXPECT_NEAR(band.at("loss").get<double>(), same.at("loss").get<double>(),
                bound * same.at("loss").get<double>())
        << name;
  }
}

TEST_F(EvaluateTest, any_number_of_ranks_gives_the_loss_of_one) {
  train_long();
  const std::map<std::string, std::string> before = read_files(folder_);
  const IndexedDataset data(prefix_);
  int64_t targets = 0;
  for (const int64_t length : data.document_lengths()) targets += std::max<int64_t>(length - 1, 0);
  const Json one = result(run_, {"model.dtype=float64"});
  EXPECT_EQ(one.at("targets"), targets);
  EXPECT_EQ(one.at("tokens"), data.num_tokens());
  EXPECT_EQ(one.at("perplexity"), std::exp(one.at("loss").get<double>()));
  EXPECT_EQ(one.at("by_position").size(), 2u);  // a document has more than 1024 tokens
  for (const auto& [name, more] :
       std::map<std::string, Words>{{"two", {"2"}},
                                    {"three", {"3", "comm.backend=threads"}},
                                    {"four", {"4", "batch.nano_batches=1"}},
                                    {"dedicated", {"1", "servers.dedicated=1"}},
                                    {"stages", {"2", "parallel.pipeline_model_parallel_size=2"}},
                                    {"packed otherwise", {"1", "batch.nano_batch_tokens=4096"}}}) {
    expect_same(result(run_, joined({"model.dtype=float64", "--workers"}, more)), one, 1e-12, name);
  }
  const Json single = result(run_);
  EXPECT_EQ(single.at("dtype"), "float32");
  expect_same(result(run_, {"--workers", "4", "parallel.pipeline_model_parallel_size=2"}), single,
              1e-6, "two stages of two");
  EXPECT_EQ(read_files(folder_), before) << "something was written";
}

TEST_F(EvaluateTest, a_run_has_its_weights_at_the_end_or_else_those_of_its_newest_checkpoint) {
  train_long({"checkpoint.every_steps=3", "checkpoint.keep_last=0"});
  const auto step_3 = run_ / "checkpoints" / "step_000003";
  const Json at_end = result(run_), at_3 = result(step_3);
  EXPECT_THAT(at_end.at("weights").get<std::string>(), HasSubstr("run: the weights after step 6"));
  EXPECT_THAT(at_3.at("weights").get<std::string>(),
              HasSubstr("step_000003: the weights after step 3"));
  EXPECT_NE(at_3.at("loss"), at_end.at("loss"));
  expect_same(result(step_3, {"--workers", "2", "parallel.pipeline_model_parallel_size=2"}), at_3,
              1e-6, "a stage each");
  const std::filesystem::path exported = folder_ / "exported";
  succeed({"export", run_.string(), "--out", exported.string()});
  EXPECT_EQ(result(exported).at("loss"), at_end.at("loss"));
  // Taken further, and not to the end yet.
  std::filesystem::rename(run_ / "checkpoints" / "step_000006",
                          run_ / "checkpoints" / "step_000007");
  std::filesystem::remove(run_ / "model.safetensors");
  const Json newest = result(run_);
  EXPECT_THAT(newest.at("weights").get<std::string>(), HasSubstr("step_000007"));
  EXPECT_EQ(newest.at("loss"), at_end.at("loss"));
  // The run replaces another one, whose weights and tokenizer stay until it saves its own.
  write_file_atomically(run_ / "tokenizer.json", "of the run before");
  EXPECT_THAT(refusal(evaluate(run_)), HasSubstr("is another tokenizer"));
  write_file_atomically(run_ / ".older_weights", "of another run\n");
  EXPECT_EQ(result(run_).at("loss"), at_end.at("loss"));
}

TEST_F(EvaluateTest, documents_beyond_the_context_are_split_and_that_is_said) {
  train("run", {});
  const Outcome split = succeed(evaluate(run_, {"batch.max_document_tokens=384"}));
  EXPECT_THAT(
      split.out,
      AllOf(StartsWith(run_.string() + ": the weights after step 6\n  data        "),
            ContainsRegex(": 40 documents, [0-9,]+ tokens \\([0-9]+ longer than 384 tokens, "
                          "split into pieces\\)\n  loss        [0-9.]+ nats a target, "
                          "perplexity [0-9.]+, [0-9,]+ targets\n")));
  EXPECT_THAT(
      succeed(evaluate(run_, {"batch.max_document_tokens=4096", "batch.nano_batch_tokens=4096"}))
          .out,
      ContainsRegex(
          "\nposition in the document +loss +targets\n0 to 1,023 [ 0-9.,]+\n1,024 to 4,095 "));
}

}  // namespace
}  // namespace distca::testing
