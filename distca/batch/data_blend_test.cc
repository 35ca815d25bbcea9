#include "distca/batch/data_blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/base/random.h"
#include "distca/batch/test_folder.h"

namespace distca {
namespace {

using ::testing::HasSubstr;

TEST(ParseBlend, one_path_is_one_set_and_weights_are_reduced) {
  const auto parsed = [](const std::string& text) {
    std::map<std::string, int64_t> weights;
    for (const BlendPart& part : parse_blend(text)) weights[part.prefix] = part.weight;
    return weights;
  };
  using Weights = std::map<std::string, int64_t>;
  EXPECT_EQ(parsed("data/a"), (Weights{{"data/a", 1}}));
  EXPECT_EQ(parsed("0.7 data/a 0.3 data/b"), (Weights{{"data/a", 7}, {"data/b", 3}}));
  EXPECT_EQ(parsed(" 30  b\t70 a "), (Weights{{"a", 7}, {"b", 3}}));
  EXPECT_EQ(parsed("5 a"), (Weights{{"a", 1}}));
  EXPECT_EQ(parsed("1e-9 a 1e9 b"), (Weights{{"a", 1}, {"b", 1'000'000'000'000'000'000}}));
}

TEST(ParseBlend, what_is_no_blend_is_refused_in_one_line) {
  for (const auto& [text, says] : std::map<std::string, std::string>{
           {"data/a data/b", "\"data/a\" stands where a weight is expected"},
           {"0.7 data/a data/b", "\"data/b\" stands where a weight is expected"},
           {"0,7 data/a", "\"0,7\" stands where a weight is expected"},
           {"0.7 data/a 0.3", "no data set after the weight 0.3"},
           {"0 data/a 1 data/b", "weight 0: expected 1e-9 to 1e9"},
           {"-1 data/a 1 data/b", "weight -1: expected"},
           {"nan data/a", "weight nan: expected"},
           {"1e10 data/a 1 data/b", "weight 1e10: expected"},
           {"1 data/a 2 data/a", "data/a is named twice"},
           {"  ", "names no data set"}}) {
    try {
      parse_blend(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  }
}

class DataBlendTest : public FolderTest {
 protected:
  /// Documents of these lengths whose ids count from `first`.
  std::string set(const std::string& name, int32_t first, const std::vector<int64_t>& lengths) {
    IndexedDatasetWriter writer(folder_ / name, TokenType::kUint16);
    for (const int64_t length : lengths) {
      std::vector<int32_t> tokens;
      for (int64_t i = 0; i < length; ++i) tokens.push_back(first++);
      writer.add_document(tokens);
    }
    writer.finish();
    return folder_ / name;
  }
  static int32_t first_token(const DataBlend& data, int64_t document) {
    std::vector<int32_t> token(1);
    EXPECT_FALSE(data.read(document, 0, token, IndexedDataset::kAnyVocabulary));
    return token[0];
  }
};

TEST_F(DataBlendTest, documents_are_numbered_through_all_sets) {
  const std::string a = set("a", 0, {3, 2}), empty = set("empty", 0, {}), b = set("b", 100, {4});
  const DataBlend data("1 " + a + " 1 " + empty + " 2 " + b);
  EXPECT_EQ(data.num_sets(), 3);
  EXPECT_EQ(data.document_lengths(), (std::vector<int64_t>{3, 2, 4}));
  EXPECT_EQ(data.num_tokens(), 9);
  EXPECT_EQ(first_token(data, 0), 0);
  EXPECT_EQ(first_token(data, 1), 3);
  EXPECT_EQ(first_token(data, 2), 100);
  EXPECT_EQ(data.prefix(2), b);
  EXPECT_EQ(data.documents_of(1).size(), 0);
  EXPECT_EQ(data.documents_of(2).begin, 2);
  EXPECT_EQ(data.sets()[2].weight, 2);
  std::vector<int32_t> last(4);
  EXPECT_FALSE(data.read(2, 0, last, 104));
  EXPECT_EQ(data.read(2, 0, last, 103).value().document, 0) << "of its own set";
  EXPECT_EQ(data.set_of(1), 0);
  EXPECT_EQ(data.set_of(2), 2);
}

TEST_F(DataBlendTest, a_path_with_a_space_is_a_path_where_such_a_set_is) {
  EXPECT_EQ(DataBlend(set("my set", 0, {3})).num_tokens(), 3);
}

TEST_F(DataBlendTest, the_summary_tells_contents_and_shares_apart) {
  const std::string a = set("a", 0, {3}), b = set("b", 0, {3});
  const std::string alone = DataBlend(a).summary();
  EXPECT_THAT(alone, HasSubstr("1 documents, 3 tokens, contents "));
  EXPECT_EQ(DataBlend("5 " + a).summary(), alone);
  const std::string even = DataBlend("1 " + a + " 1 " + b).summary();
  EXPECT_EQ(even, "1/2 of the tokens from " + alone + "; 1/2 of the tokens from " + alone);
  EXPECT_EQ(DataBlend("0.5 " + a + " 0.5 " + b).summary(), even);
  EXPECT_NE(DataBlend("1 " + a + " 2 " + b).summary(), even);
}

/// Sets of random documents, and their stream.
struct Blend {
  std::vector<int64_t> lengths, documents;
  std::vector<StreamSet> sets;
  BatchOptions options;

  Blend(const std::vector<int64_t>& weights, BatchOptions batch) : options(batch) {
    Random random(5);
    for (const int64_t weight : weights) {
      sets.push_back({.first_document = static_cast<int64_t>(lengths.size()), .weight = weight});
      for (uint64_t i = 0; i < 8 + random.below(20); ++i)
        lengths.push_back(static_cast<int64_t>(random.below(90)));
    }
    for (size_t i = 0; i < lengths.size(); ++i) documents.push_back(static_cast<int64_t>(i));
  }
  BatchStream stream() const { return {lengths, documents, options, sets}; }
  int64_t set_of(int64_t document) const {
    int64_t set = 0;
    while (set + 1 < std::ssize(sets) && sets[set + 1].first_document <= document) ++set;
    return set;
  }
  /// Each token of a document but the last one has a next one.
  int64_t epoch_targets(int64_t set) const {
    int64_t targets = 0;
    for (const int64_t document : documents)
      if (set_of(document) == set) targets += std::max<int64_t>(lengths[document] - 1, 0);
    return targets;
  }
};

class BlendedStreamTest : public ::testing::TestWithParam<std::vector<int64_t>> {
 protected:
  const Blend blend_{
      GetParam(),
      {.nano_batch_tokens = 64, .nano_batches = 2, .max_document_tokens = 50, .seed = 3}};
  static constexpr int kBatches = 200;
};

TEST_P(BlendedStreamTest, every_set_has_its_share_to_a_document) {
  BatchStream stream = blend_.stream();
  std::vector<int64_t> taken(blend_.sets.size());
  int64_t total = 0, weights = 0;
  for (const StreamSet& set : blend_.sets) weights += set.weight;
  for (int i = 0; i < kBatches; ++i) {
    for (const NanoBatchSource& nano_batch : stream.next()) {
      for (size_t d = 0; d < nano_batch.sources.size(); ++d) {
        const int64_t tokens = nano_batch.nano_batch.documents[d].length;
        taken[blend_.set_of(nano_batch.sources[d].document)] += tokens;
        total += tokens;
        for (size_t set = 0; set < taken.size(); ++set) {
          const double share =
              static_cast<double>(total * blend_.sets[set].weight) / static_cast<double>(weights);
          EXPECT_LE(std::abs(static_cast<double>(taken[set]) - share),
                    static_cast<double>(blend_.options.max_document_tokens));
        }
      }
    }
  }
}

TEST_P(BlendedStreamTest, every_pair_of_a_set_is_a_target_exactly_once_in_an_epoch_of_the_set) {
  BatchStream stream = blend_.stream();
  const int64_t num_sets = std::ssize(blend_.sets);
  std::vector<int64_t> taken(num_sets), targets(num_sets);
  std::map<std::pair<int64_t, int64_t>, int64_t> seen;  // by document and position
  for (int i = 0; i < kBatches; ++i) {
    for (const NanoBatchSource& nano_batch : stream.next()) {
      for (size_t d = 0; d < nano_batch.sources.size(); ++d) {
        const DocumentSource& source = nano_batch.sources[d];
        const int64_t set = blend_.set_of(source.document);
        const int64_t epoch = taken[set] / stream.epoch_tokens(set);
        taken[set] += nano_batch.nano_batch.documents[d].length;
        targets[set] += source.num_targets;
        // A pair may come again when all others of its set have come as often.
        for (int64_t t = 0; t < source.num_targets; ++t)
          EXPECT_EQ((seen[{source.document, source.offset + t}]++), epoch);
        if (taken[set] % stream.epoch_tokens(set) == 0) {
          EXPECT_EQ(targets[set], blend_.epoch_targets(set) * (epoch + 1));
        }
      }
    }
  }
  for (int64_t set = 0; set < num_sets; ++set) {
    EXPECT_GT(taken[set], 2 * stream.epoch_tokens(set));
    EXPECT_EQ(stream.state()["sets"][set]["epoch"], taken[set] / stream.epoch_tokens(set));
  }
}

TEST_P(BlendedStreamTest, seeking_and_restoring_equal_running) {
  BatchStream stream = blend_.stream();
  BatchStream restored = blend_.stream();
  for (int i = 0; i < kBatches; ++i) {
    const Json state = stream.state();
    BatchStream sought = blend_.stream();
    sought.seek(i);
    EXPECT_EQ(sought.state(), state);
    restored.restore({state, "file", ErrorKind::kCheckpoint});
    EXPECT_EQ(restored.state(), state);
    const Batch batch = stream.next();
    EXPECT_EQ(sought.next(), batch) << "batch " << i;
    EXPECT_EQ(restored.next(), batch) << "batch " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, BlendedStreamTest,
                         ::testing::Values(std::vector<int64_t>{1}, std::vector<int64_t>{7, 3},
                                           std::vector<int64_t>{1, 5, 2},
                                           std::vector<int64_t>{3, 3, 3, 3}));

TEST(BlendedStream, one_set_has_the_batches_of_a_stream_without_sets_whatever_its_weight) {
  const Blend blend({9}, {.nano_batch_tokens = 64, .max_document_tokens = 50, .seed = 3});
  BatchStream with = blend.stream(), without(blend.lengths, blend.options);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(with.next(), without.next());
}

TEST(BlendedStream, ties_go_to_the_first_and_sets_without_tokens_are_left_out) {
  BatchStream stream({2, 0, 2, 2}, {0, 1, 2, 3}, {.nano_batch_tokens = 8, .max_document_tokens = 2},
                     {{0, 1}, {1, 1}, {2, 1}, {3, 2}});
  EXPECT_EQ(stream.num_sets(), 3);
  std::vector<int64_t> order;
  for (int i = 0; i < 2; ++i) {
    const Batch batch = stream.next();
    for (const DocumentSource& source : batch[0].sources) order.push_back(source.document);
  }
  EXPECT_EQ(order, (std::vector<int64_t>{0, 3, 2, 3, 0, 3, 2, 3}));
}

TEST(BlendedStream, the_first_epochs_end_with_the_set_that_is_used_up_first) {
  BatchStream stream({8, 4}, {0, 1}, {.nano_batch_tokens = 4, .max_document_tokens = 4},
                     {{0, 1}, {1, 1}});
  for (int i = 0; i < 3; ++i) {  // 4 of each, and the other 4 of the first
    stream.next();
    EXPECT_TRUE(stream.is_within_first_epochs()) << i;
  }
  stream.next();
  EXPECT_FALSE(stream.is_within_first_epochs());
}

TEST(BlendedStream, a_state_of_another_stream_is_refused) {
  const Blend blend({7, 3}, {.nano_batch_tokens = 64, .max_document_tokens = 50});
  BatchStream stream = blend.stream();
  for (const auto& [field, value] : std::map<std::string, Json>{
           {"sets", Json::array()}, {"offset", 50}, {"set", 2}, {"batch", -1}}) {
    Json state = stream.state();
    state[field] = value;
    EXPECT_THROW(stream.restore({state, "file", ErrorKind::kCheckpoint}), Error) << field;
  }
}

}  // namespace
}  // namespace distca
