#include "distca/cost/stage_layers.h"

#include <algorithm>

#include "distca/base/error.h"

namespace distca {

int64_t layer_products(const ModelShape& model) {
  const AttentionShape& shape = model.attention;
  const int64_t q = shape.num_heads * shape.head_dim_qk;
  const int64_t kv = shape.num_kv_heads * (shape.head_dim_qk + shape.head_dim_v);
  const int64_t o = shape.num_heads * shape.head_dim_v;
  return model.hidden_size * (q + kv + o) + 3 * model.hidden_size * model.intermediate_size;
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
  for (int64_t placed = stages; placed < model.num_layers; ++placed) {
    int least = 0;
    for (int stage = 1; stage < stages; ++stage) {
      if (work(stage) < work(least)) least = stage;
    }
    ++count[least];
  }
  std::vector<Range> layers;
  for (int64_t begin = 0; const int64_t layers_here : count) {
    layers.push_back({begin, begin + layers_here});
    begin += layers_here;
  }
  return layers;
}

}  // namespace distca
