#include "distca/cost/memory_price.h"

#include <algorithm>

namespace distca {

MemoryPrice llama_memory(const ModelShape& layers, Recompute recompute, bool keys_travel_again) {
  const AttentionShape& shape = layers.attention;
  const int64_t type = shape.element_bytes();
  const int64_t wide = std::max<int64_t>(type, 4);
  const int64_t o = shape.o_token_bytes() + shape.num_heads * wide;
  const int64_t qkv = shape.q_token_bytes() + shape.kv_token_bytes();
  const int64_t hidden = layers.hidden_size * type, inner = layers.intermediate_size * type;
  int64_t of_layer = hidden + o;  // its input
  if (recompute != Recompute::kFull || keys_travel_again) of_layer += qkv;
  if (recompute != Recompute::kFull) of_layer += hidden + 2 * inner + 2 * wide;
  if (layers.has_qk_norm && recompute != Recompute::kFull) {
    of_layer += shape.q_token_bytes() + shape.num_kv_heads * shape.head_dim_qk * type +
                (shape.num_heads + shape.num_kv_heads) * wide;
  }
  if (recompute == Recompute::kNone) of_layer += 2 * hidden + inner;
  return {.token_bytes = layers.num_layers * of_layer,
          .kept_query_bytes = layers.num_layers * shape.q_token_bytes(),
          .kept_key_bytes = layers.num_layers * shape.kv_token_bytes()};
}

int64_t left_token_bytes(const ModelShape& layers) {
  const AttentionShape& shape = layers.attention;
  const int64_t rows = (4 * layers.hidden_size + 3 * layers.intermediate_size) *
                       static_cast<int64_t>(shape.element_bytes());
  return layers.num_layers *
         (rows + shape.q_token_bytes() + shape.o_token_bytes() + shape.kv_token_bytes());
}

}  // namespace distca
