#include "distca/model/weight_table.h"

#include <fmt/format.h>

#include <cmath>

#include "distca/base/integers.h"

namespace distca {

int64_t Weight::numel() const { return is_matrix() ? shape[0] * shape[1] : shape[0]; }

std::vector<Weight> weight_table(const LlamaConfig& config) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t q = config.num_attention_heads * config.head_dim,
                kv = config.num_key_value_heads * config.head_dim;
  const double std_dev = config.initializer_range;
  // Matrices that write to the residual stream are scaled down with depth, as in GPT-2.
  const double residual_std =
      std_dev / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  constexpr SplitAxis kRows = SplitAxis::kRows, kColumns = SplitAxis::kColumns,
                      kNone = SplitAxis::kNone;
  std::vector<Weight> table;
  table.push_back(
      {"model.embed_tokens.weight", {config.vocab_size, hidden}, kRows, kBeforeLayers, std_dev});
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape, SplitAxis split,
                         double initial_std) {
      table.push_back({fmt::format("model.layers.{}.{}.weight", layer, name), std::move(shape),
                       split, layer, initial_std});
    };
    add("input_layernorm", {hidden}, kNone, 0);
    add("self_attn.q_proj", {q, hidden}, kRows, std_dev);
    add("self_attn.k_proj", {kv, hidden}, kRows, std_dev);
    add("self_attn.v_proj", {kv, hidden}, kRows, std_dev);
    add("self_attn.o_proj", {hidden, q}, kColumns, residual_std);
    add("post_attention_layernorm", {hidden}, kNone, 0);
    add("mlp.gate_proj", {inner, hidden}, kRows, std_dev);
    add("mlp.up_proj", {inner, hidden}, kRows, std_dev);
    add("mlp.down_proj", {hidden, inner}, kColumns, residual_std);
  }
  table.push_back({"model.norm.weight", {hidden}, kNone, kAfterLayers, 0});
  if (!config.tie_word_embeddings)
    table.push_back({"lm_head.weight", {config.vocab_size, hidden}, kRows, kAfterLayers, std_dev});
  return table;
}

FlatLayout flat_layout(const std::vector<Weight>& weights) {
  FlatLayout layout;
  for (const Weight& weight : weights) {
    layout.begins.push_back(layout.elements);
    layout.elements += round_up(weight.numel(), kFlatAlignment);
  }
  layout.elements = round_up(layout.elements, kFlatBlock);
  return layout;
}

}  // namespace distca
