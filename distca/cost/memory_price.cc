#include "distca/cost/memory_price.h"

#include <algorithm>

namespace distca {

namespace {

/// Bytes of a token in one layer, of which `own` only the rank has that has the token's row.
struct LayerBytes {
  int64_t all = 0, own = 0;
};

/// The phases of one rank (train/nano_phases.h) or, where ranks divide them, of each of them
/// (train/tensor_nano_phases.h): these gather the norms' outputs again in any case, and keep with
/// kFull what they would have to send again.
LayerBytes layer_bytes(const ModelShape& layers, Recompute recompute, int64_t type, int64_t wide) {
  const bool is_full = recompute == Recompute::kFull, is_divided = layers.tensor_ranks > 1;
  const int64_t hidden = layers.hidden_size * type, inner = layers.intermediate_size * type;
  LayerBytes bytes{.all = is_full ? 0 : 2 * inner, .own = hidden};
  if (!is_full || is_divided) bytes.own += hidden + 2 * wide;
  if (recompute == Recompute::kNone) {
    bytes.all += inner;
    if (!is_divided) bytes.own += 2 * hidden;
  }
  return bytes;
}

}  // namespace

MemoryPrice llama_memory(const ModelShape& layers, Recompute recompute, bool keys_travel_again) {
  const AttentionShape& shape = layers.attention;
  const int64_t type = shape.element_bytes();
  const int64_t wide = std::max<int64_t>(type, 4);
  LayerBytes bytes = layer_bytes(layers, recompute, type, wide);
  bytes.all += shape.o_token_bytes() + shape.num_heads * wide;
  if (recompute != Recompute::kFull || keys_travel_again)
    bytes.all += shape.q_token_bytes() + shape.kv_token_bytes();
  if (layers.has_qk_norm && recompute != Recompute::kFull) {
    bytes.all += shape.q_token_bytes() + shape.num_kv_heads * shape.head_dim_qk * type +
                 (shape.num_heads + shape.num_kv_heads) * wide;
  }
  return {.token_bytes =
              layers.num_layers * bytes.all + layers.num_layers * bytes.own / layers.tensor_ranks,
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
