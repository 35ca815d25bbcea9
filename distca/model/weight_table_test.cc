#include "distca/model/weight_table.h"

#include <gtest/gtest.h>

#include <set>

namespace distca {
namespace {

TEST(weight_table, lists_every_weight_once_with_its_axis_and_layer) {
  const LlamaConfig config{.vocab_size = 50,
                           .hidden_size = 32,
                           .intermediate_size = 48,
                           .num_hidden_layers = 2,
                           .num_attention_heads = 4,
                           .num_key_value_heads = 2,
                           .head_dim = 8};
  const std::vector<Weight> table = weight_table(config);
  ASSERT_EQ(table.size(), 1u + 2 * 9 + 2);
  std::set<std::string> names;
  int64_t total = 0;
  for (const Weight& weight : table) {
    names.insert(weight.name);
    total += weight.numel();
    EXPECT_EQ(weight.decays(), weight.shape.size() == 2) << weight.name;
    EXPECT_EQ(weight.initial_std > 0, weight.is_matrix()) << weight.name;
    EXPECT_EQ(weight.split == SplitAxis::kNone, !weight.is_matrix()) << weight.name;
  }
  EXPECT_EQ(names.size(), table.size());
  EXPECT_EQ(total, 2 * 50 * 32 + 32 + 2 * (2 * 32 + 32 * (2 * 32 + 2 * 16 + 3 * 48)));
  EXPECT_EQ(total, config.num_parameters());
  EXPECT_EQ(table.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(table.front().layer, kBeforeLayers);
  const Weight& down = table[1 + 9 + 8];
  EXPECT_EQ(down.name, "model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(down.shape, (std::vector<int64_t>{32, 48}));
  EXPECT_EQ(down.split, SplitAxis::kColumns);
  EXPECT_EQ(down.layer, 1);
  EXPECT_EQ(down.initial_std, 0.02 / 2);  // two layers write to the residual stream twice each
  EXPECT_EQ(table.back().name, "lm_head.weight");
  EXPECT_EQ(table.back().layer, kAfterLayers);
}

TEST(weight_table, a_tied_head_is_not_listed) {
  LlamaConfig config;
  const size_t untied = weight_table(config).size();
  config.tie_word_embeddings = true;
  EXPECT_EQ(weight_table(config).size(), untied - 1);
  EXPECT_EQ(weight_table(config).back().name, "model.norm.weight");
}

}  // namespace
}  // namespace distca
