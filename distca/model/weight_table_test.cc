#include "distca/model/weight_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "distca/base/integers.h"
#include "distca/program/program.h"

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

TEST(weight_table, other_families_have_further_weights_that_do_not_decay) {
  for (const auto& [type, names] :
       {std::pair(ModelType::kQwen2,
                  std::set<std::string>{"q_proj.bias", "k_proj.bias", "v_proj.bias"}),
        std::pair(ModelType::kQwen3, std::set<std::string>{"q_norm.weight", "k_norm.weight"})}) {
    LlamaConfig config;
    std::set<std::string> llama, more;
    for (const Weight& weight : weight_table(config)) llama.insert(weight.name);
    config.model_type = type;
    for (const Weight& weight : weight_table(config)) {
      if (llama.erase(weight.name) > 0) continue;
      EXPECT_FALSE(weight.decays()) << weight.name;
      EXPECT_EQ(weight.is_bias(), type == ModelType::kQwen2) << weight.name;
      EXPECT_EQ(weight.phase, OpKind::kPreAttention) << weight.name;
      const std::string of_layer = fmt::format("model.layers.{}.self_attn.", weight.layer);
      ASSERT_TRUE(weight.name.starts_with(of_layer)) << weight.name;
      EXPECT_TRUE(names.contains(weight.name.substr(of_layer.size()))) << weight.name;
      more.insert(weight.name);
    }
    EXPECT_TRUE(llama.empty());
    EXPECT_EQ(more.size(), names.size() * config.num_hidden_layers);
  }
}

TEST(weight_table, a_tied_head_is_not_listed) {
  LlamaConfig config;
  const size_t untied = weight_table(config).size();
  config.tie_word_embeddings = true;
  EXPECT_EQ(weight_table(config).size(), untied - 1);
  EXPECT_EQ(weight_table(config).back().name, "model.norm.weight");
}

TEST(weight_table, stages_have_its_lines_in_turn) {
  const LlamaConfig config{.num_hidden_layers = 5};
  const Stage stages[] = {{0, 3, {0, 2}}, {1, 3, {2, 3}}, {2, 3, {3, 5}}};
  std::vector<std::string> names, want;
  for (const Stage& stage : stages) {
    for (const Weight& weight : weight_table(config, stage)) names.push_back(weight.name);
  }
  for (const Weight& weight : weight_table(config)) want.push_back(weight.name);
  EXPECT_EQ(names, want);
  EXPECT_EQ(weight_table(config, stages[1]).size(), 9u);
  EXPECT_EQ(weight_table(config, whole_model(config)).size(), want.size());
}

TEST(weight_table, the_last_stage_has_a_copy_of_a_tied_embedding) {
  const LlamaConfig config{.num_hidden_layers = 3, .tie_word_embeddings = true};
  const std::vector<Weight> whole = weight_table(config, whole_model(config)),
                            first = weight_table(config, {0, 3, {0, 1}}),
                            middle = weight_table(config, {1, 3, {1, 2}}),
                            last = weight_table(config, {2, 3, {2, 3}});
  EXPECT_EQ(whole.size(), first.size() + middle.size() + last.size() - 1);
  for (const Weight& weight : whole) EXPECT_FALSE(weight.is_tied) << weight.name;
  for (const Weight& weight : middle) EXPECT_FALSE(weight.is_tied) << weight.name;
  const Weight &embedding = first.front(), &head = last.back();
  EXPECT_TRUE(embedding.is_tied && !embedding.is_copy());
  EXPECT_TRUE(head.is_tied && head.is_copy());
  EXPECT_EQ(head.name, embedding.name);
  EXPECT_EQ(head.shape, embedding.shape);
  EXPECT_EQ(head.initial_std, embedding.initial_std);
  EXPECT_EQ(head.phase, OpKind::kLoss);
  EXPECT_EQ(head.layer, kAfterLayers);
}

TEST(weight_table, ranks_of_tensor_parallelism_hold_heads_and_even_parts_of_the_rest) {
  const LlamaConfig config{.vocab_size = 61,
                           .hidden_size = 64,
                           .intermediate_size = 96,
                           .num_hidden_layers = 1,
                           .num_attention_heads = 8,
                           .num_key_value_heads = 2,
                           .head_dim = 16,
                           .model_type = ModelType::kQwen2};
  const auto held = [&](int size, int index, std::string_view name) {
    Stage stage = whole_model(config);
    stage.tensor = {.size = size, .index = index};
    const std::vector<Weight> table = weight_table(config, stage);
    return *std::ranges::find_if(
        table, [&](const Weight& w) { return w.name.find(name) != std::string::npos; });
  };
  EXPECT_EQ(held(4, 3, "embed_tokens").box, (std::vector<Range>{{45, 61}, {0, 64}}));
  EXPECT_EQ(held(4, 0, "lm_head").box, (std::vector<Range>{{0, 15}, {0, 64}}));
  EXPECT_EQ(held(4, 1, "q_proj.weight").box, (std::vector<Range>{{32, 64}, {0, 64}}));
  EXPECT_EQ(held(4, 1, "q_proj.bias").box, (std::vector<Range>{{32, 64}}));
  EXPECT_EQ(held(2, 1, "k_proj.weight").box, (std::vector<Range>{{16, 32}, {0, 64}}));
  EXPECT_EQ(held(4, 1, "v_proj.bias").box, (std::vector<Range>{{0, 16}})) << "of both neighbours";
  EXPECT_EQ(held(4, 1, "v_proj.bias").holders, (Range{0, 2}));
  EXPECT_EQ(held(4, 2, "k_proj.weight").box, (std::vector<Range>{{16, 32}, {0, 64}}));
  EXPECT_EQ(held(4, 1, "o_proj").box, (std::vector<Range>{{0, 64}, {32, 64}}));
  EXPECT_EQ(held(4, 2, "up_proj").held_shape(), (std::vector<int64_t>{24, 64}));
  EXPECT_EQ(held(4, 2, "down_proj").holders, (Range{2, 3}));
  EXPECT_EQ(held(4, 2, "down_proj").numel(), 64 * 24);
  EXPECT_EQ(held(4, 2, "input_layernorm").box, (std::vector<Range>{{0, 64}}));
  EXPECT_EQ(held(4, 2, "input_layernorm").holders, (Range{0, 4}));
}

TEST(weight_table, a_tied_weight_lies_in_blocks_of_its_own) {
  const LlamaConfig config{.vocab_size = 50,
                           .hidden_size = 40,
                           .num_hidden_layers = 2,
                           .tie_word_embeddings = true,
                           .dtype = ScalarType::kBFloat16};
  const auto stage = [](int index) { return Stage{index, 2, {index, index + 1}}; };
  const auto weights = [&](int index) { return weight_table(config, stage(index)); };
  const FlatLayout first = flat_layout(weights(0)), last = flat_layout(weights(1)),
                   whole = flat_layout(weight_table(config));
  EXPECT_EQ(first.begins[0], 0);
  EXPECT_EQ(first.begins[1], kFlatBlock) << "50 x 40 elements, and a gap";
  EXPECT_EQ(whole.begins[1], round_up(50 * 40, kFlatAlignment)) << "of one stage, no gap";
  EXPECT_EQ(last.begins.back() % kFlatBlock, 0);
  EXPECT_EQ(last.elements, last.begins.back() + kFlatBlock);
  const WeightOffsets offsets = parameter_offsets(config, stage(1), MainParams::kElsewhere);
  EXPECT_EQ(offsets.of(last.elements) - offsets.of(last.begins.back()), 2 * kFlatBlock);
  EXPECT_EQ(offsets.of(last.elements), offsets.bytes);
}

TEST(weight_table, weights_that_several_ranks_hold_lie_first_in_blocks_of_their_own) {
  const LlamaConfig config{.vocab_size = 61,
                           .hidden_size = 64,
                           .num_hidden_layers = 3,
                           .num_attention_heads = 8,
                           .num_key_value_heads = 2,
                           .head_dim = 16,
                           .dtype = ScalarType::kBFloat16,
                           .model_type = ModelType::kQwen3};
  Stage stage = whole_model(config);
  stage.tensor = {.size = 4, .index = 3};
  const std::vector<Weight> weights = weight_table(config, stage);
  const WeightOffsets offsets = parameter_offsets(config, stage, MainParams::kElsewhere);
  const FlatLayout& layout = offsets.layout;
  int64_t end = 0, end_byte = 0, holders = 4;
  for (const size_t i : layout.order) {
    const Weight& weight = weights[i];
    EXPECT_GE(layout.begins[i], end) << weight.name;
    EXPECT_GE(offsets.begins[i], end_byte) << weight.name;
    if (weight.holders.size() != holders) {
      EXPECT_EQ(layout.begins[i] % kFlatBlock, 0) << weight.name;
    }
    EXPECT_LE(weight.holders.size(), holders) << "norms of all, then K and V of two neighbours";
    EXPECT_EQ(offsets.of(layout.begins[i]), offsets.begins[i]) << weight.name;
    holders = weight.holders.size();
    end = layout.begins[i] + weight.numel();
    end_byte = offsets.begins[i] + weight.numel() * offsets.element_bytes[i];
  }
  EXPECT_EQ(holders, 1);
  EXPECT_EQ(offsets.of(layout.elements), offsets.bytes);
}

}  // namespace
}  // namespace distca
