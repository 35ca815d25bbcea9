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
