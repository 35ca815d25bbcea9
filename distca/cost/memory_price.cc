#include "distca/cost/memory_price.h"

#include <algorithm>

namespace distca {

MemoryPrice llama_memory(const ModelShape& layers) {
  const AttentionShape& shape = layers.attention;
  const int64_t type = shape.element_bytes;
  const int64_t wide = std::max<int64_t>(type, 4);
  // Where the types agree, the first norm saves the layer's input itself.
  const int64_t norm_inputs = (wide == type ? 1 : 2) * layers.hidden_size;
  const int64_t norms = (norm_inputs + 2 * (layers.hidden_size + 1)) * wide;
  const int64_t in_type = 3 * layers.hidden_size + 4 * layers.intermediate_size;
  const int64_t attention = shape.q_token_bytes() + shape.kv_token_bytes() + shape.o_token_bytes() +
                            shape.num_heads * wide;
  return {.token_bytes = layers.num_layers * (norms + in_type * type + attention),
          .kept_query_bytes = layers.num_layers * shape.q_token_bytes(),
          .kept_key_bytes = layers.num_layers * shape.kv_token_bytes()};
}

}  // namespace distca
