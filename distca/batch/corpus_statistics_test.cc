#include "distca/batch/corpus_statistics.h"

#include <cmath>

#include "distca/base/file.h"
#include "distca/base/random.h"
#include "distca/batch/test_folder.h"

namespace distca {
namespace {

using CorpusStatisticsTest = FolderTest;

TEST_F(CorpusStatisticsTest, histogram_and_shares_of_known_lengths) {
  std::vector<int64_t> lengths(99, 1);
  lengths.push_back(100);
  const LengthStatistics statistics = length_statistics(lengths);
  EXPECT_EQ(statistics.documents, 100);
  EXPECT_EQ(statistics.tokens, 199);
  EXPECT_EQ(statistics.median, 1);
  EXPECT_EQ(statistics.longest, 100);
  EXPECT_EQ(statistics.pairs, 99 + 5050);
  EXPECT_DOUBLE_EQ(statistics.longest_1_percent_share, 5050.0 / 5149);
  EXPECT_DOUBLE_EQ(statistics.longest_10_percent_share, 5059.0 / 5149);
  ASSERT_EQ(statistics.histogram.size(), 2u);
  EXPECT_EQ(statistics.histogram[1].begin, 64);
  EXPECT_EQ(statistics.histogram[1].documents, 1);
}

TEST_F(CorpusStatisticsTest, nothing_has_no_shares) {
  EXPECT_EQ(length_statistics({}).longest, 0);
  EXPECT_EQ(length_statistics({0, 0}).longest_1_percent_share, 0);
}

TEST_F(CorpusStatisticsTest, entropies_of_a_known_text) {
  IndexedDatasetWriter writer(folder_ / "set", TokenType::kUint16);
  // Pairs 1-2, 2-1 and 1-1: after 1 comes 2 or 1, after 2 always 1. No pair crosses documents.
  for (int64_t i = 0; i < kLeastPairCount; ++i) {
    writer.add_document(std::vector<int32_t>{1, 2, 1});
    writer.add_document(std::vector<int32_t>{1, 1});
  }
  writer.finish();
  const auto entropies = token_entropies(IndexedDataset(folder_ / "set"));
  ASSERT_TRUE(entropies.has_value());
  EXPECT_DOUBLE_EQ(entropies->unigram, -(0.8 * std::log(0.8) + 0.2 * std::log(0.2)));
  ASSERT_TRUE(entropies->bigram.has_value());
  EXPECT_DOUBLE_EQ(*entropies->bigram, 2.0 / 3 * std::log(2));
}

TEST_F(CorpusStatisticsTest, pairs_too_few_to_mean_anything_have_no_entropy) {
  IndexedDatasetWriter writer(folder_ / "set", TokenType::kUint16);
  std::vector<int32_t> tokens;  // 4,000 different ones: most pairs are there once
  Random random(1);
  for (int i = 0; i < 20'000; ++i) tokens.push_back(static_cast<int32_t>(random.below(4000)));
  writer.add_document(tokens);
  writer.finish();
  const auto entropies = token_entropies(IndexedDataset(folder_ / "set"));
  ASSERT_TRUE(entropies.has_value());
  EXPECT_GT(entropies->unigram, 8);
  EXPECT_FALSE(entropies->bigram.has_value());
}

TEST_F(CorpusStatisticsTest, ids_that_no_vocabulary_has_are_not_counted) {
  IndexedDatasetWriter writer(folder_ / "set", TokenType::kInt32);
  writer.add_document(std::vector<int32_t>(100, 7));
  writer.finish();
  ASSERT_TRUE(token_entropies(IndexedDataset(folder_ / "set")).has_value());
  std::string tokens = read_file(folder_ / "set.bin");
  tokens.replace(200, 4, 4, '\xff');
  write_file_atomically(folder_ / "set.bin", tokens);
  EXPECT_FALSE(token_entropies(IndexedDataset(folder_ / "set")).has_value());
}

TEST_F(CorpusStatisticsTest, large_vocabularies_are_not_counted) {
  IndexedDatasetWriter writer(folder_ / "set", TokenType::kUint16);
  writer.add_document(std::vector<int32_t>{1, kMaxCountedVocabulary});
  writer.finish();
  EXPECT_FALSE(token_entropies(IndexedDataset(folder_ / "set")).has_value());
}

}  // namespace
}  // namespace distca
