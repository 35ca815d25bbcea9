#include "distca/batch/batch_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/base/random.h"

namespace distca {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> lengths;
  BatchOptions options;
};

std::vector<int64_t> random_lengths(int64_t count, uint64_t longest) {
  Random random(17);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i)
    lengths.push_back(static_cast<int64_t>(random.below(longest + 1)));
  return lengths;
}

std::vector<Case> cases() {
  return {
      {"many_small", random_lengths(200, 30), {64, 2, 64, 1}},
      {"cut_often", random_lengths(50, 300), {100, 3, 37, 2}},
      {"one_document_over_many_batches", {1000}, {64, 1, 64, 3}},
      {"epochs_smaller_than_a_nano_batch", {3, 0, 1, 2}, {64, 2, 10, 4}},
      {"one_token_documents", {1, 1, 1, 1, 1}, {3, 1, 3, 5}},
      {"one_token_pieces", {5, 4, 3}, {4, 2, 1, 6}},
  };
}

class BatchStreamTest : public ::testing::TestWithParam<Case> {
 protected:
  const std::vector<int64_t>& lengths() const { return GetParam().lengths; }
  const BatchOptions& options() const { return GetParam().options; }
  /// Enough batches to finish two epochs.
  int64_t num_batches() const {
    const BatchStream stream(lengths(), options());
    return ceil_div(2 * stream.epoch_tokens(),
                    options().nano_batch_tokens * options().nano_batches);
  }
};

TEST_P(BatchStreamTest, every_pair_of_an_epoch_is_a_target_exactly_once) {
  BatchStream stream(lengths(), options());
  // Epochs follow each other in the stream without a gap, so the first `epoch_tokens` tokens are
  // epoch 0.
  int64_t tokens = 0;
  std::map<std::pair<int64_t, int64_t>, int> seen;
  while (tokens < stream.epoch_tokens()) {
    for (const NanoBatchSource& nano_batch : stream.next()) {
      for (size_t i = 0; i < nano_batch.sources.size(); ++i) {
        if (tokens >= stream.epoch_tokens()) break;
        const DocumentSource& source = nano_batch.sources[i];
        for (int64_t t = 0; t < source.num_targets; ++t)
          ++seen[{source.document, source.offset + t}];
        tokens += nano_batch.nano_batch.documents[i].length;
      }
    }
  }
  EXPECT_EQ(tokens, stream.epoch_tokens());
  const auto documents =
      std::ranges::count_if(lengths(), [](int64_t length) { return length > 0; });
  EXPECT_EQ(std::ssize(seen), stream.epoch_tokens() - documents) << "the last token has no next";
  for (const auto& [pair, count] : seen) {
    EXPECT_EQ(count, 1) << "document " << pair.first << " position " << pair.second;
    EXPECT_LT(pair.second + 1, lengths()[pair.first]);
  }
}

TEST_P(BatchStreamTest, every_nano_batch_is_full_and_no_document_is_too_long) {
  BatchStream stream(lengths(), options());
  for (int64_t i = 0; i < num_batches(); ++i) {
    const Batch batch = stream.next();
    ASSERT_EQ(static_cast<int64_t>(batch.size()), options().nano_batches);
    for (const NanoBatchSource& nano_batch : batch) {
      EXPECT_EQ(nano_batch.nano_batch.num_tokens(), options().nano_batch_tokens);
      EXPECT_EQ(nano_batch.sources.size(), nano_batch.nano_batch.documents.size());
      for (const Document& document : nano_batch.nano_batch.documents) {
        EXPECT_GE(document.length, 1);
        EXPECT_LE(document.length, options().max_document_tokens);
      }
    }
  }
}

TEST_P(BatchStreamTest, pieces_are_cut_from_the_start_and_a_rest_follows_its_beginning) {
  BatchStream stream(lengths(), options());
  const int64_t longest = options().max_document_tokens;
  int64_t document = -1, next_offset = 0;
  for (int64_t i = 0; i < num_batches(); ++i) {
    for (const NanoBatchSource& nano_batch : stream.next()) {
      for (size_t d = 0; d < nano_batch.sources.size(); ++d) {
        const DocumentSource& source = nano_batch.sources[d];
        const bool continues =
            document >= 0 && next_offset < lengths()[document] && next_offset % longest != 0;
        if (continues) {
          EXPECT_EQ(source.document, document);
          EXPECT_EQ(source.offset, next_offset);
        } else {
          EXPECT_EQ(source.offset % longest, 0);
        }
        document = source.document;
        next_offset = source.offset + nano_batch.nano_batch.documents[d].length;
        const bool ends = next_offset == lengths()[document];
        EXPECT_EQ(source.num_targets, nano_batch.nano_batch.documents[d].length - (ends ? 1 : 0));
      }
    }
  }
}

TEST_P(BatchStreamTest, seeking_equals_running) {
  BatchStream stream(lengths(), options());
  for (int64_t i = 0; i < num_batches(); ++i) {
    BatchStream resumed(lengths(), options());
    resumed.seek(i);
    EXPECT_EQ(resumed.state(), stream.state());
    EXPECT_EQ(resumed.next(), stream.next()) << "batch " << i;
  }
}

TEST_P(BatchStreamTest, the_same_seed_gives_the_same_batches) {
  BatchStream first(lengths(), options()), second(lengths(), options());
  for (int64_t i = 0; i < num_batches(); ++i) EXPECT_EQ(first.next(), second.next());
}

INSTANTIATE_TEST_SUITE_P(Options, BatchStreamTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(BatchStream, seeds_and_epochs_have_orders_of_their_own) {
  const std::vector<int64_t> lengths(50, 2);
  const BatchOptions options{.nano_batch_tokens = 100, .max_document_tokens = 100, .seed = 1};
  BatchOptions other = options;
  other.seed = 2;
  BatchStream stream(lengths, options), other_stream(lengths, other);
  const Batch epoch_0 = stream.next();
  EXPECT_EQ(stream.state()["sets"][0]["epoch"], 1);
  EXPECT_NE(epoch_0, stream.next());
  EXPECT_NE(epoch_0, other_stream.next());
}

TEST(BatchStream, only_listed_documents_are_used) {
  BatchStream stream({5, 6, 7, 8}, {3, 1}, {.nano_batch_tokens = 28, .max_document_tokens = 28});
  EXPECT_EQ(stream.epoch_tokens(), 14);
  const Batch batch = stream.next();
  for (const DocumentSource& source : batch[0].sources) {
    EXPECT_TRUE(source.document == 1 || source.document == 3);
  }
}

TEST(BatchStream, options_out_of_range_and_empty_data_are_refused) {
  EXPECT_THROW(BatchStream({5}, {0, 1, 1, 0}), CheckFailure);
  EXPECT_THROW(BatchStream({5}, {8, 0, 1, 0}), CheckFailure);
  EXPECT_THROW(BatchStream({5}, {8, 1, 9, 0}), CheckFailure);
  EXPECT_THROW(BatchStream({5}, {8, 1, 0, 0}), CheckFailure);
  EXPECT_THROW(BatchStream({}, {8, 1, 8, 0}), Error);
  EXPECT_THROW(BatchStream({0, 0}, {8, 1, 8, 0}), Error);
}

TEST(SplitDocuments, sides_are_disjoint_and_complete) {
  const std::vector<int64_t> lengths(1000, 3);
  const DocumentSplit split = split_documents(lengths, 0.05, 7);
  EXPECT_EQ(split.validation.size(), 50u);
  std::vector<int> seen(1000, 0);
  for (int64_t document : split.train) ++seen[document];
  for (int64_t document : split.validation) ++seen[document];
  EXPECT_EQ(seen, std::vector<int>(1000, 1));
  EXPECT_EQ(split_documents(lengths, 0.05, 7).validation, split.validation);
  EXPECT_NE(split_documents(lengths, 0.05, 8).validation, split.validation);
}

TEST(SplitDocuments, the_share_is_one_of_tokens) {
  // One document has half of the tokens: it is never a twentieth of them.
  std::vector<int64_t> lengths = random_lengths(400, 100);
  lengths.push_back(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  const double all = 2.0 * static_cast<double>(lengths.back());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    int64_t tokens = 0;
    for (const int64_t document : split_documents(lengths, 0.05, seed).validation) {
      tokens += lengths[document];
      EXPECT_GT(lengths[document], 0);
    }
    EXPECT_LE(static_cast<double>(tokens), 0.05 * all + 1);
    EXPECT_GE(static_cast<double>(tokens), 0.049 * all);
  }
}

TEST(SplitDocuments, small_sets_keep_one_document_on_each_side) {
  using Lengths = std::vector<int64_t>;
  EXPECT_EQ(split_documents(Lengths{5, 3}, 0.001, 1).validation, Lengths{1});
  EXPECT_EQ(split_documents(Lengths{1, 1}, 0.99, 1).train.size(), 1u);
  EXPECT_EQ(split_documents(Lengths{0, 1, 1, 0}, 0.99, 1).train.size(), 3u);
  EXPECT_TRUE(split_documents(Lengths{7, 0}, 0.5, 1).validation.empty());
  EXPECT_TRUE(split_documents(Lengths(10, 1), 0, 1).validation.empty());
  EXPECT_TRUE(split_documents(Lengths{}, 0.5, 1).train.empty());
  EXPECT_THROW(split_documents(Lengths(10, 1), 1.0, 1), CheckFailure);
  EXPECT_THROW(split_documents(Lengths(10, 1), -0.1, 1), CheckFailure);
}

}  // namespace
}  // namespace distca
