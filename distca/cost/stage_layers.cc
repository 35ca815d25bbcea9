#include "distca/cost/stage_layers.h"

#include <algorithm>
#include <ranges>

#include "distca/base/error.h"

namespace distca {

int64_t projection_products(const ModelShape& model) {
  const AttentionShape& shape = model.attention;
  return model.hidden_size * (shape.num_heads * shape.head_dim_qk +
                              shape.num_kv_heads * (shape.head_dim_qk + shape.head_dim_v));
}

int64_t output_products(const ModelShape& model) {
  return model.hidden_size * model.attention.num_heads * model.attention.head_dim_v;
}

int64_t layer_products(const ModelShape& model) {
  return projection_products(model) + output_products(model) +
         3 * model.hidden_size * model.intermediate_size;
}

int64_t products_again(const ModelShape& model, Recompute recompute, bool keys_travel_again) {
  if (recompute != Recompute::kFull) return 0;
  if (model.tensor_ranks == 1) return layer_products(model);
  const bool projects = !keys_travel_again || model.has_qk_norm;
  return 2 * model.hidden_size * model.intermediate_size +
         (projects ? projection_products(model) : 0);
}

int64_t head_products(const ModelShape& model) { return model.hidden_size * model.vocab_size; }

std::vector<Range> even_stages(const ModelShape& model, int stages) {
  DISTCA_CHECK(stages >= 1 && stages <= model.num_layers, "{} layers over {} stages",
               model.num_layers, stages);
  const int64_t layer = std::max<int64_t>(1, layer_products(model));
  std::vector<int64_t> count(stages, 1);
  const auto work = [&](int stage) {  // with one layer more
    return (count[stage] + 1) * layer + (stage + 1 == stages ? head_products(model) : 0);
  };
  for (int64_t placed = stages; placed < model.num_layers; ++placed)
    ++count[std::ranges::min(std::views::iota(0, stages), {}, work)];
  std::vector<Range> layers;
  for (int64_t begin = 0; const int64_t layers_here : count) {
    layers.push_back({begin, begin + layers_here});
    begin += layers_here;
  }
  return layers;
}

}  // namespace distca
