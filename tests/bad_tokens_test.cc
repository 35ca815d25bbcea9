// Runs whose data ends them in the middle, or has no target: what is good is saved, and they go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/batch/indexed_dataset.h"
#include "distca/batch/tokenizer_files.h"
#include "tests/checkpoint_runs.h"

namespace distca::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(CheckpointTest, a_data_set_that_is_cut_in_the_middle_of_a_run_costs_no_step) {
  const fs::path tokens = prefix_.string() + ".bin";
  const std::string whole = read_file(tokens);
  const Words words = {"--workers", "2", "train.validation_every=0"};
  program_.emplace(arguments(joined(words, {"train.steps=1000000"})));
  ASSERT_TRUE(wait_for_steps(3));
  fs::resize_file(tokens, 0);
  const std::string line = error_line(program_->wait(), 2);
  EXPECT_THAT(line, AllOf(HasSubstr(tokens.string() + ": cut while it is in use: "),
                          HasSubstr(" is saved, --resume goes on from it")));
  ASSERT_EQ(saved().size(), 1u);
  EXPECT_EQ(metrics().size(), static_cast<size_t>(saved()[0]));
  write_file_atomically(tokens, whole);
  resume(joined(words, {fmt::format("train.steps={}", saved()[0] + 2)}));
}

class BadTokens : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    const IndexedDataset text(prefix_);
    for (int64_t document = 0; document < text.num_documents(); ++document) {
      documents_.emplace_back(text.document_length(document));
      EXPECT_FALSE(text.read(document, 0, documents_.back()));
    }
    put(999);
  }
  /// Token 200 of the longest document is `id`, and nobody has noticed.
  void put(int32_t id) {
    std::ranges::max_element(documents_, {}, &std::vector<int32_t>::size)->at(200) = id;
    IndexedDatasetWriter writer(prefix_, TokenType::kUint16);
    int64_t tokens = 0;
    for (const std::vector<int32_t>& document : documents_) {
      writer.add_document(document);
      tokens += std::ssize(document);
    }
    writer.finish();
    save_tokenizer(prefix_,
                   {.vocab_size = 256,
                    .documents = std::ssize(documents_),
                    .tokens = tokens,
                    .largest_id = 255},
                   {});
  }

  /// Trains with one worker and returns the results.
  Training alone(const std::string& name, const Words& more) const {
    succeed(arguments(more, name));
    return read_training(name);
  }

  std::vector<std::vector<int32_t>> documents_;
  const Words words_ = {"model.dtype=float64", "train.steps=24", "train.validation_every=0",
                        "data.validation_fraction=0.05", "train.overwrite=true"};
};

TEST_F(BadTokens, one_in_the_middle_costs_no_step_and_the_run_goes_on_without_it) {
  const std::vector<double> want =
      alone("one", joined(words_, {"data.bad_tokens=skip_target"})).losses;
  for (const char* const grid :
       {"parallel.pipeline_model_parallel_size=1", "parallel.pipeline_model_parallel_size=2"}) {
    const Words words = joined(words_, {"--workers", "2", grid});
    const std::string line = refusal(arguments(joined(words, {"checkpoint.every_steps=1"})));
    EXPECT_THAT(line, AllOf(StartsWith(prefix_.string() + ".bin: document "),
                            HasSubstr(" has token id 999 at position 200: model.vocab_size = 256 "
                                      "has ids 0 to 255; the largest id found is 999: "),
                            HasSubstr("; the state after step "),
                            HasSubstr(" is saved, --resume goes on from it")));
    ASSERT_THAT(saved(), Not(IsEmpty()));
    const int64_t last = saved().back();
    EXPECT_THAT(line, HasSubstr(fmt::format("after step {} is saved", last)));
    EXPECT_GT(last, 1) << "the data set does not show what it should";
    EXPECT_EQ(metrics().size(), static_cast<size_t>(last));
    EXPECT_THAT(unfinished(), IsEmpty());
    EXPECT_EQ(refusal(arguments(joined(words, {"--resume"}))),
              line.substr(0, line.find("; the state")) + "\n");
    const Outcome outcome =
        run_distca(arguments(joined(words, {"--resume", "data.bad_tokens=skip_target"})));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("warning: step "),
                                   HasSubstr("the model does not have the ids of 1 token")));
    EXPECT_THAT(outcome.out,
                HasSubstr("\ndata.bad_tokens was 'refuse' and is 'skip_target' from "));
    expect_near(read_training("run").losses, want, 1e-10, grid);
  }
}

TEST_F(BadTokens, what_takes_their_place_is_trained_on_as_if_it_had_been_there) {
  const std::vector<double> got = alone("bad", joined(words_, {"data.bad_tokens=7"})).losses;
  put(7);
  EXPECT_EQ(got, alone("good", words_).losses);
}

TEST_F(BadTokens, a_batch_without_targets_has_no_loss_and_is_no_measure) {
  documents_.assign(2000, std::vector<int32_t>{1});
  documents_.emplace_back(300, 2);
  put(3);
  const Outcome outcome = succeed(
      arguments({"batch.nano_batch_tokens=8", "batch.nano_batches=1", "batch.max_document_tokens=8",
                 "train.steps=70", "train.spike_factor=30", "data.validation_fraction=0",
                 "train.validation_every=0", "optimizer.lr=1e-5"}));
  std::vector<double> losses;
  for (const Json& line : metrics()) {
    EXPECT_EQ(line.at("loss").is_null(), line.at("targets") == 0) << line;
    if (!line.at("loss").is_null()) losses.push_back(line.at("loss"));
  }
  ASSERT_GT(losses.size(), 2u);
  ASSERT_LT(losses.size(), 35u) << "the median of all steps would not be 0";
  EXPECT_THAT(outcome.out, HasSubstr(fmt::format("loss {:.3f} -> {:.3f} nats a token",
                                                 losses.front(), losses.back())));
}

}  // namespace
}  // namespace distca::testing
