#include "distca/cost/attention_shape.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(AttentionShape, bytes_of_llama_8b_on_one_of_eight_ranks) {
  const AttentionShape shape{.num_heads = 4, .num_kv_heads = 1};
  EXPECT_EQ(shape.q_token_bytes(), 1024);
  EXPECT_EQ(shape.kv_token_bytes(), 512);
  EXPECT_EQ(shape.o_token_bytes(), 1024);
}

}  // namespace
}  // namespace distca
