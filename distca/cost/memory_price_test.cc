#include "distca/cost/memory_price.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(MemoryPrice, of_a_small_llama_counted_by_hand) {
  ModelShape layers{.num_layers = 2,
                    .hidden_size = 100,
                    .intermediate_size = 300,
                    .attention = {.num_heads = 6,
                                  .num_kv_heads = 3,
                                  .head_dim_qk = 16,
                                  .head_dim_v = 8,
                                  .type = ScalarType::kFloat32}};
  const int64_t qkv = 6 * 16 + 3 * (16 + 8), o = 6 * 8;
  // Both norms' inputs, outputs and factors; Q, K, V, O, LSE; the MLP.
  const int64_t elements = 4 * 100 + 2 + qkv + o + 6 + 3 * 300;
  EXPECT_EQ(llama_memory(layers), (MemoryPrice{.token_bytes = 2 * elements * 4,
                                               .kept_query_bytes = 2 * 6 * 16 * 4,
                                               .kept_key_bytes = 2 * 3 * (16 + 8) * 4}));
  EXPECT_EQ(llama_memory(layers, Recompute::kSelective).token_bytes,
            2 * (elements - 2 * 100 - 300) * 4);
  EXPECT_EQ(llama_memory(layers, Recompute::kFull).token_bytes, 2 * (100 + o + 6) * 4);
  EXPECT_EQ(llama_memory(layers, Recompute::kFull, /*keys_travel_again=*/true).token_bytes,
            2 * (100 + qkv + o + 6) * 4);
  // Gradients by the output and by the projection of O, both norms' rows; the MLP's product and the
  // gradients by its gate and up; O; the gradients by Q, K, V.
  EXPECT_EQ(left_token_bytes(layers), 2 * (4 * 100 + 3 * 300 + o + qkv) * 4);
  layers.has_qk_norm = true;  // its inputs and factors
  const int64_t normed = 6 * 16 + 3 * 16 + 6 + 3;
  EXPECT_EQ(llama_memory(layers, Recompute::kSelective).token_bytes,
            2 * (elements + normed - 2 * 100 - 300) * 4);
  EXPECT_EQ(llama_memory(layers, Recompute::kFull).token_bytes, 2 * (100 + o + 6) * 4);
  layers.has_qk_norm = false;
  layers.attention.type = ScalarType::kBFloat16;
  // The norms' factors and LSE stay wide.
  const int64_t halves = 4 * 100 + qkv + o + 3 * 300;
  EXPECT_EQ(llama_memory(layers), (MemoryPrice{.token_bytes = 2 * (halves * 2 + (2 + 6) * 4),
                                               .kept_query_bytes = 2 * 6 * 16 * 2,
                                               .kept_key_bytes = 2 * 3 * (16 + 8) * 2}));
}

TEST(MemoryPrice, of_a_rank_that_divides_layers_counted_by_hand) {
  const ModelShape layers{.num_layers = 2,
                          .hidden_size = 101,
                          .intermediate_size = 300,
                          .attention = {.num_heads = 6,
                                        .num_kv_heads = 3,
                                        .head_dim_qk = 16,
                                        .head_dim_v = 16,
                                        .type = ScalarType::kBFloat16},
                          .tensor_ranks = 4};
  const int64_t q = 6 * 16, kv = 2 * 3 * 16;
  // Both norms' inputs and factors of a fourth of the rows; Q, K, V, O, LSE; the MLP.
  const int64_t own = 2 * (2 * 101 * 2 + 2 * 4) / 4;
  const auto of_all = [](int64_t halves) { return 2 * (halves * 2 + 6 * 4); };
  EXPECT_EQ(llama_memory(layers), (MemoryPrice{.token_bytes = own + of_all(2 * q + kv + 3 * 300),
                                               .kept_query_bytes = 2 * q * 2,
                                               .kept_key_bytes = 2 * kv * 2}));
  EXPECT_EQ(llama_memory(layers, Recompute::kSelective).token_bytes,
            own + of_all(2 * q + kv + 2 * 300));
  EXPECT_EQ(llama_memory(layers, Recompute::kFull).token_bytes, own + of_all(q));
  EXPECT_EQ(llama_memory(layers, Recompute::kFull, /*keys_travel_again=*/true).token_bytes,
            own + of_all(2 * q + kv));
  // Gathered rows are left whole.
  EXPECT_EQ(left_token_bytes(layers), 2 * (4 * 101 + 3 * 300 + 2 * q + kv) * 2);
}

}  // namespace
}  // namespace distca
