#include "distca/forecast/data_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"
#include "distca/batch/test_folder.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class DataSplitTest : public FolderTest {
 protected:
  DataBlend data(const std::vector<int64_t>& lengths) {
    IndexedDatasetWriter writer(folder_ / "set", TokenType::kUint8);
    for (const int64_t length : lengths)
      writer.add_document(std::vector<int32_t>(static_cast<size_t>(length), 7));
    writer.finish();
    return DataBlend(folder_ / "set");
  }
  DataSplitTest() { config_.batch = {.nano_batch_tokens = 8, .max_document_tokens = 8}; }

  Config config_;
};

TEST_F(DataSplitTest, documents_without_a_next_token_give_no_batches) {
  const DataBlend set = data({20, 0, 1, 1, 0, 5});
  EXPECT_TRUE(validation_batches(config_, set, {.train = {0}, .validation = {}}).empty());
  EXPECT_TRUE(validation_batches(config_, set, {.train = {0}, .validation = {1, 4}}).empty());
  EXPECT_TRUE(validation_batches(config_, set, {.train = {0}, .validation = {1, 2, 3}}).empty());
  const auto batches = validation_batches(config_, set, {.train = {0}, .validation = {1, 2, 5}});
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0][0].num_targets(), 4);
}

TEST_F(DataSplitTest, validation_is_in_pairs_where_steps_play_pairs) {
  const DataBlend set = data({8, 8, 8, 8, 8, 8});
  const auto sizes = [&] {
    std::vector<size_t> found;
    for (const Batch& batch :
         validation_batches(config_, set, {.train = {0}, .validation = {1, 2, 3, 4, 5}}))
      found.push_back(batch.size());
    return found;
  };
  config_.train.validation_nano_batches = 5;
  config_.batch.nano_batches = 4;
  EXPECT_THAT(sizes(), ElementsAre(2, 2, 1));
  config_.train.overlap = Overlap::kWithin;
  EXPECT_THAT(sizes(), ElementsAre(1, 1, 1, 1, 1));
  config_.train.overlap = Overlap::kPingPong;
  config_.batch.nano_batches = 1;
  EXPECT_THAT(sizes(), ElementsAre(1, 1, 1, 1, 1));
}

TEST_F(DataSplitTest, an_evaluation_has_every_document_once_and_whole) {
  const DataBlend set = data({5, 0, 3, 1, 20, 8, 2});
  const auto shape = [&] {  // tokens and targets of every document, by nano-batch
    std::string text;
    for (const Batch& batch : evaluation_batches(config_, set)) {
      for (const NanoBatchSource& source : batch) {
        text += '(';
        for (size_t i = 0; i < source.sources.size(); ++i) {
          const DocumentSource& part = source.sources[i];
          text += fmt::format("{}@{}:{}/{} ", part.document, part.offset, part.num_targets,
                              source.nano_batch.documents[i].length);
        }
        text.back() = ')';
      }
      text += ' ';
    }
    return text;
  };
  EXPECT_EQ(shape(),
            "(0@0:4/5 2@0:2/3) (3@0:0/1) (4@0:8/8) (4@8:8/8) (4@16:3/4) (5@0:7/8) (6@0:1/2) ");
  config_.batch.nano_batches = 2;  // in pairs
  config_.batch.nano_batch_tokens = 20;
  config_.batch.max_document_tokens = 20;
  EXPECT_EQ(shape(), "(0@0:4/5 2@0:2/3 3@0:0/1)(4@0:19/20) (5@0:7/8 6@0:1/2) ");
  EXPECT_THAT(
      [&] {
        evaluation_batches(config_, data({1, 0, 1}));
      },
      ThrowsMessage<Error>(HasSubstr("has no next token")));
}

TEST_F(DataSplitTest, a_training_part_without_a_next_token_is_refused) {
  const DataBlend set = data({1, 0, 5});
  EXPECT_NO_THROW(check_training_part(set, {.train = {0, 2}, .validation = {1}}));
  try {
    check_training_part(set, {.train = {0, 1}, .validation = {2}});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), HasSubstr("no next token to learn: not one of the 2 documents"));
  }
}

TEST_F(DataSplitTest, the_words_count_both_parts_and_what_is_split) {
  const DataBlend set = data({20, 3, 9, 1, 0});
  EXPECT_EQ(describe_split(config_, set, {.train = {0, 1, 3}, .validation = {2}}),
            "training on 3 documents, 24 tokens (1 longer than 8 tokens, split into pieces); "
            "validation: 1 document, 9 tokens");
  EXPECT_EQ(describe_split(config_, set, {.train = {1}, .validation = {3, 4}}),
            "training on 1 document, 3 tokens (a step takes 8: it has each document 2.7 times); "
            "validation: 2 documents, 1 token, no next token: no "
            "validation loss");
  EXPECT_EQ(describe_split(config_, set, {.train = {1}, .validation = {}}),
            "training on 1 document, 3 tokens (a step takes 8: it has each document 2.7 times); "
            "one document: none for validation, no validation loss");
  config_.data.validation_fraction = 0;
  EXPECT_EQ(describe_split(config_, set, {.train = {1}, .validation = {}}),
            "training on 1 document, 3 tokens (a step takes 8: it has each document 2.7 times); no "
            "validation");
}

}  // namespace
}  // namespace distca
