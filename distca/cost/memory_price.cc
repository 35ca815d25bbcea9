#include "distca/cost/memory_price.h"

#include <algorithm>

namespace distca {

MemoryPrice llama_memory(const ModelShape& layers) {
  const AttentionShape& shape = layers.attention;
  const int64_t type = shape.element_bytes;
  const int64_t wide = std::max<int64_t>(type, 4);
  const int64_t in_type = 4 * layers.hidden_size + 3 * layers.intermediate_size;
  const int64_t attention = shape.q_token_bytes() + shape.kv_token_bytes() + shape.o_token_bytes() +
                            shape.num_heads * wide;
  return {.token_bytes = layers.num_layers * (in_type * type + 2 * wide + attention),
          .kept_query_bytes = layers.num_layers * shape.q_token_bytes(),
          .kept_key_bytes = layers.num_layers * shape.kv_token_bytes()};
}

}  // namespace distca
