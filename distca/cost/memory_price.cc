#include "distca/cost/memory_price.h"

#include <algorithm>

namespace distca {

MemoryPrice llama_memory(const ModelShape& layers, Recompute recompute, bool keys_travel_again) {
  const AttentionShape& shape = layers.attention;
  const bool is_full = recompute == Recompute::kFull, is_divided = layers.tensor_ranks > 1;
  const int64_t type = shape.element_bytes(), wide = std::max<int64_t>(type, 4);
  const int64_t hidden = layers.hidden_size * type, inner = layers.intermediate_size * type;
  // Bytes of a token in one layer, of which `own` only the rank has that has the token's row. The
  // phases are those of one rank (train/nano_phases.h) or, where ranks divide them, of each of them
  // (train/tensor_nano_phases.h): these gather the norms' outputs again in any case, and keep with
  // kFull what they would have to send again.
  int64_t all = is_full ? 0 : 2 * inner, own = hidden;
  if (!is_full || is_divided) own += hidden + 2 * wide;
  if (recompute == Recompute::kNone) {
    all += inner;
    if (!is_divided) own += 2 * hidden;
  }
  all += shape.o_token_bytes() + shape.num_heads * wide;
  if (!is_full || keys_travel_again) all += shape.q_token_bytes() + shape.kv_token_bytes();
  if (layers.has_qk_norm && !is_full) {
    all += shape.q_token_bytes() + shape.num_kv_heads * shape.head_dim_qk * type +
           (shape.num_heads + shape.num_kv_heads) * wide;
  }
  return {.token_bytes = layers.num_layers * all + layers.num_layers * own / layers.tensor_ranks,
          .kept_query_bytes = layers.num_layers * shape.q_token_bytes(),
          .kept_key_bytes = layers.num_layers * shape.kv_token_bytes()};
}

int64_t left_token_bytes(const ModelShape& layers) {
  const AttentionShape& shape = layers.attention;
  const int64_t rows =
      (4 * layers.hidden_size + 3 * layers.intermediate_size) * shape.element_bytes();
  return layers.num_layers *
         (rows + shape.q_token_bytes() + shape.o_token_bytes() + shape.kv_token_bytes());
}

}  // namespace distca
