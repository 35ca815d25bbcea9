#include "distca/model/weight_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/integers.h"
#include "distca/base/normal.h"
#include "distca/program/program.h"

namespace distca {

std::vector<int64_t> Weight::held_shape() const {
  if (box.empty()) return shape;
  std::vector<int64_t> sizes;
  for (const Range& side : box) sizes.push_back(side.size());
  return sizes;
}

int64_t Weight::numel() const {
  const std::vector<int64_t> sizes = held_shape();
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies());
}

namespace {

/// Gives a weight the part that the rank of this place holds.
void divide(Weight& weight, const TensorPlace& place) {
  weight.box.clear();
  for (const int64_t size : weight.shape) weight.box.push_back({0, size});
  weight.holders = {0, place.size};
  if (weight.split == SplitAxis::kNone) return;
  Range& side = weight.split == SplitAxis::kRows ? weight.box.front() : weight.box.back();
  const int64_t count = weight.heads > 0 ? weight.heads : side.size(), unit = side.size() / count;
  if (weight.heads > 0 && weight.heads < place.size) {
    const int64_t sharers = place.size / weight.heads, head = place.index / sharers;
    side = {head * unit, (head + 1) * unit};
    weight.holders = {head * sharers, (head + 1) * sharers};
    return;
  }
  const Range part = place.part(count);
  side = {part.begin * unit, part.end * unit};
  weight.holders = {place.index, place.index + 1};
}

/// All weights, before they are divided.
std::vector<Weight> whole_table(const LlamaConfig& config) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const int64_t dim = config.head_dim, q = heads * dim, kv = kv_heads * dim;
  const double std_dev = config.initializer_range;
  // Matrices that write to the residual stream are scaled down with depth, as in GPT-2.
  const double residual_std =
      std_dev / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  using enum SplitAxis;
  std::vector<Weight> table;
  std::string prefix;
  int layer = kBeforeLayers;
  OpKind phase = OpKind::kEmbed;
  const auto add = [&](const char* name, std::vector<int64_t> shape, SplitAxis split,
                       double initial_std = 0, int64_t of_heads = 0) {
    table.push_back({.name = prefix + name,
                     .shape = std::move(shape),
                     .split = split,
                     .layer = layer,
                     .phase = phase,
                     .initial_std = initial_std,
                     .heads = of_heads});
  };
  add("model.embed_tokens.weight", {config.vocab_size, hidden}, kRows, std_dev);
  for (layer = 0; layer < config.num_hidden_layers; ++layer) {
    prefix = fmt::format("model.layers.{}.", layer);
    phase = OpKind::kAttentionNorm;
    add("input_layernorm.weight", {hidden}, kNone);
    phase = OpKind::kPreAttention;
    add("self_attn.q_proj.weight", {q, hidden}, kRows, std_dev, heads);
    add("self_attn.k_proj.weight", {kv, hidden}, kRows, std_dev, kv_heads);
    add("self_attn.v_proj.weight", {kv, hidden}, kRows, std_dev, kv_heads);
    if (config.has_qkv_bias()) {
      add("self_attn.q_proj.bias", {q}, kRows, 0, heads);
      add("self_attn.k_proj.bias", {kv}, kRows, 0, kv_heads);
      add("self_attn.v_proj.bias", {kv}, kRows, 0, kv_heads);
    }
    if (config.has_qk_norm()) {
      add("self_attn.q_norm.weight", {dim}, kNone);
      add("self_attn.k_norm.weight", {dim}, kNone);
    }
    phase = OpKind::kOutProjection;
    add("self_attn.o_proj.weight", {hidden, q}, kColumns, residual_std, heads);
    phase = OpKind::kMlpNorm;
    add("post_attention_layernorm.weight", {hidden}, kNone);
    phase = OpKind::kPostAttention;
    add("mlp.gate_proj.weight", {inner, hidden}, kRows, std_dev);
    add("mlp.up_proj.weight", {inner, hidden}, kRows, std_dev);
    add("mlp.down_proj.weight", {hidden, inner}, kColumns, residual_std);
  }
  prefix.clear();
  layer = kAfterLayers;
  phase = OpKind::kLoss;
  add("model.norm.weight", {hidden}, kNone);
  if (!config.tie_word_embeddings)
    add("lm_head.weight", {config.vocab_size, hidden}, kRows, std_dev);
  return table;
}

}  // namespace

void draw_initial_values(const Weight& weight, uint64_t seed, int64_t chunk,
                         std::span<float> values) {
  std::span<float> out = values.subspan(static_cast<size_t>(chunk * kNormalChunk));
  out = out.first(std::min(out.size(), static_cast<size_t>(kNormalChunk)));
  if (!weight.is_matrix()) {
    std::ranges::fill(out, weight.is_bias() ? 0.0f : 1.0f);
    return;
  }
  Fnv1a64 hash;
  hash.add(weight.name);
  draw_normal_chunk(seed ^ hash.value(), static_cast<uint64_t>(chunk), weight.initial_std, out);
}

std::vector<Weight> weight_table(const LlamaConfig& config) {
  return weight_table(config, whole_model(config));
}

std::vector<Weight> weight_table(const LlamaConfig& config, const Stage& stage) {
  std::vector<Weight> table = whole_table(config);
  Weight& embedding = table.front();
  embedding.is_tied = config.tie_word_embeddings && stage.count > 1;
  if (embedding.is_tied && stage.is_last()) {
    Weight head = embedding;
    head.layer = kAfterLayers;
    head.phase = OpKind::kLoss;
    table.push_back(std::move(head));
  }
  std::erase_if(table, [&](const Weight& weight) {
    if (weight.layer == kBeforeLayers) return !stage.is_first();
    if (weight.layer == kAfterLayers) return !stage.is_last();
    return !stage.holds(weight.layer);
  });
  const int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const int ranks = stage.tensor.size;
  DISTCA_CHECK(heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0),
               "{} heads and {} key/value heads over {} ranks", heads, kv_heads, ranks);
  for (Weight& weight : table) divide(weight, stage.tensor);
  return table;
}

Stage whole_model(const LlamaConfig& config) { return {.layers = {0, config.num_hidden_layers}}; }

FlatLayout flat_layout(const std::vector<Weight>& weights) {
  FlatLayout layout{.begins = std::vector<int64_t>(weights.size())};
  layout.order.resize(weights.size());
  std::iota(layout.order.begin(), layout.order.end(), size_t{0});
  const auto holders = [&](size_t i) { return weights[i].holders.size(); };
  std::ranges::stable_sort(layout.order, std::greater(), holders);
  for (size_t place = 0; place < layout.order.size(); ++place) {
    const size_t i = layout.order[place];
    const bool begins_group = place > 0 && holders(i) != holders(layout.order[place - 1]);
    const int64_t alignment = weights[i].is_tied ? kFlatBlock : kFlatAlignment;
    layout.begins[i] = round_up(layout.elements, begins_group ? kFlatBlock : alignment);
    layout.elements = layout.begins[i] + round_up(weights[i].numel(), alignment);
  }
  layout.elements = round_up(layout.elements, kFlatBlock);
  return layout;
}

WeightOffsets parameter_offsets(const LlamaConfig& config, const Stage& stage,
                                MainParams main_params) {
  const std::vector<Weight> weights = weight_table(config, stage);
  const int64_t main_param = config.dtype == ScalarType::kFloat64 ? 8 : 4;
  const int64_t of_matrix =
      main_params == MainParams::kHere ? main_param : element_bytes(config.dtype);
  WeightOffsets offsets{.layout = flat_layout(weights)};
  const FlatLayout& layout = offsets.layout;
  offsets.begins.resize(weights.size());
  offsets.element_bytes.resize(weights.size());
  for (size_t place = 0; place < weights.size(); ++place) {
    const size_t i = layout.order[place];
    const int64_t end =
        place + 1 < weights.size() ? layout.begins[layout.order[place + 1]] : layout.elements;
    offsets.begins[i] = offsets.bytes;
    offsets.element_bytes[i] = weights[i].is_matrix() ? of_matrix : main_param;
    offsets.bytes += (end - layout.begins[i]) * offsets.element_bytes[i];
  }
  return offsets;
}

int64_t WeightOffsets::of(int64_t element) const {
  const auto begin = [this](size_t i) { return layout.begins[i]; };
  const size_t weight = *(std::ranges::upper_bound(layout.order, element, {}, begin) - 1);
  return begins[weight] + (element - layout.begins[weight]) * element_bytes[weight];
}

}  // namespace distca
