#include "distca/cost/attention_cost.h"

#include <gtest/gtest.h>

#include "distca/base/random.h"

namespace distca {
namespace {

TEST(AttentionCost, pairs_equal_a_count_one_by_one) {
  Random random(1);
  const auto range = [&random] {
    const auto begin = static_cast<int64_t>(random.below(20));
    return Range{begin, begin + static_cast<int64_t>(random.below(12))};
  };
  for (int trial = 0; trial < 500; ++trial) {
    const Range q = range();
    const Range kv = range();
    int64_t causal = 0;
    for (int64_t i = q.begin; i < q.end; ++i) {
      for (int64_t j = kv.begin; j < kv.end; ++j) causal += j <= i;
    }
    EXPECT_EQ(attention_pairs(q, kv, MaskType::kCausal), causal);
    EXPECT_EQ(attention_pairs(q, kv, MaskType::kFull), q.size() * kv.size());
  }
}

TEST(AttentionCost, pairs_of_a_window_equal_a_count_one_by_one) {
  Random random(2);
  for (int trial = 0; trial < 4000; ++trial) {
    const auto q_begin = static_cast<int64_t>(random.below(30));
    const Range q{q_begin, q_begin + static_cast<int64_t>(random.below(20))};
    const auto kv_begin = static_cast<int64_t>(random.below(30));
    const Range kv{kv_begin, kv_begin + static_cast<int64_t>(random.below(20))};
    const auto window = static_cast<int64_t>(random.below(40)) - 1;
    int64_t pairs = 0;
    for (int64_t i = q.begin; i < q.end; ++i) {
      for (int64_t j = kv.begin; j < kv.end; ++j)
        pairs += j <= i && (window < 0 || j >= i - window);
    }
    EXPECT_EQ(attention_pairs(q, kv, MaskType::kCausal, window), pairs)
        << "[" << q.begin << ", " << q.end << ") x [" << kv.begin << ", " << kv.end << ") window "
        << window;
    EXPECT_EQ(attention_pairs(q, kv, MaskType::kFull, window), q.size() * kv.size());
  }
}

TEST(AttentionCost, pairs_of_the_longest_document_do_not_overflow) {
  constexpr int64_t kLength = int64_t{1} << 30;
  const Range all{0, kLength};
  EXPECT_EQ(attention_pairs(all, all, MaskType::kCausal), kLength / 2 * (kLength + 1));
  EXPECT_EQ(attention_pairs(all, all, MaskType::kFull), kLength * kLength);
  EXPECT_EQ(attention_pairs(all, all, MaskType::kCausal, kLength), kLength / 2 * (kLength + 1));
  EXPECT_EQ(attention_pairs(all, all, MaskType::kCausal, 0), kLength);
}

TEST(AttentionCost, visible_keys_are_all_that_a_query_sees_begun_at_a_block) {
  for (const int64_t window : {-1, 0, 1, 127, 128, 300}) {
    for (int64_t begin = 0; begin < 700; begin += 37) {
      const Range q{begin, begin + 50};
      const Range keys = visible_keys(q, window);
      // The first query sees furthest back.
      const int64_t first = window < 0 ? 0 : std::max<int64_t>(0, begin - window);
      EXPECT_EQ(keys.end, q.end);
      EXPECT_EQ(keys.begin % 128, 0);
      EXPECT_LE(keys.begin, first);
      EXPECT_GT(keys.begin + 128, first);
      EXPECT_EQ(attention_pairs(q, keys, MaskType::kCausal, window),
                attention_pairs(q, {0, 10000}, MaskType::kCausal, window));
    }
  }
}

TEST(AttentionCost, pairs_of_the_paper) {
  const int64_t q = 384;
  const int64_t kv = 1024;  // q rows that end at key kv
  EXPECT_EQ(attention_pairs({kv - q, kv}, {0, kv}, MaskType::kCausal), q * kv - q * (q - 1) / 2);
  EXPECT_EQ(attention_pairs({0, kv}, {0, kv}, MaskType::kCausal), kv * (kv + 1) / 2);
}

TEST(AttentionCost, bytes_of_llama_8b_on_one_of_eight_ranks) {
  const AttentionShape shape{.num_heads = 4, .num_kv_heads = 1};
  EXPECT_EQ(shape.q_token_bytes(), 1024);
  EXPECT_EQ(shape.kv_token_bytes(), 512);
  EXPECT_EQ(shape.o_token_bytes(), 1024);
}

}  // namespace
}  // namespace distca
