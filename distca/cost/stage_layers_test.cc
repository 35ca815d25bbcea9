#include "distca/cost/stage_layers.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

ModelShape model_of(int64_t layers, int64_t vocab) {
  return {.num_layers = layers,
          .hidden_size = 4096,
          .intermediate_size = 14336,
          .attention = {.num_heads = 32, .num_kv_heads = 8, .head_dim_qk = 128, .head_dim_v = 128},
          .vocab_size = vocab};
}

std::vector<int64_t> counts(const ModelShape& model, int stages) {
  std::vector<int64_t> result;
  int64_t begin = 0;
  for (const Range& layers : even_stages(model, stages)) {
    EXPECT_EQ(layers.begin, begin);
    begin = layers.end;
    result.push_back(layers.size());
  }
  EXPECT_EQ(begin, model.num_layers);
  return result;
}

TEST(stage_layers, without_a_head_they_are_as_even_as_can_be) {
  EXPECT_EQ(counts(model_of(32, 0), 4), (std::vector<int64_t>{8, 8, 8, 8}));
  EXPECT_EQ(counts(model_of(7, 0), 3), (std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(counts(model_of(3, 0), 3), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(counts(model_of(5, 0), 1), (std::vector<int64_t>{5}));
}

TEST(stage_layers, the_head_of_llama_8b_counts_as_2_4_layers) {
  const ModelShape llama = model_of(32, 128256);
  EXPECT_NEAR(
      static_cast<double>(head_products(llama)) / static_cast<double>(layer_products(llama)), 2.4,
      0.05);
  EXPECT_EQ(counts(llama, 4), (std::vector<int64_t>{9, 9, 8, 6}));
  EXPECT_EQ(counts(model_of(4, 128256), 4), (std::vector<int64_t>{1, 1, 1, 1}));
}

TEST(stage_layers, ranks_that_divide_layers_compute_less_of_them_again) {
  ModelShape llama = model_of(32, 0);
  EXPECT_EQ(products_again(llama, Recompute::kNone, true), 0);
  EXPECT_EQ(products_again(llama, Recompute::kSelective, true), 0);
  EXPECT_EQ(products_again(llama, Recompute::kFull, true), layer_products(llama));
  llama.tensor_ranks = 2;
  const int64_t gate_and_up = 2 * llama.hidden_size * llama.intermediate_size;
  EXPECT_EQ(products_again(llama, Recompute::kFull, true), gate_and_up);
  const int64_t output = llama.hidden_size * llama.attention.num_heads * llama.attention.head_dim_v;
  const int64_t projections = layer_products(llama) - gate_and_up * 3 / 2 - output;
  EXPECT_GT(projections, 0);
  EXPECT_EQ(products_again(llama, Recompute::kFull, false), gate_and_up + projections);
  llama.has_qk_norm = true;
  EXPECT_EQ(products_again(llama, Recompute::kFull, true), gate_and_up + projections);
}

}  // namespace
}  // namespace distca
