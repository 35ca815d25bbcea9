#include "distca/cost/memory_price.h"

namespace distca {

int64_t memory_bytes(const MemoryPrice& price, int64_t home_tokens, int64_t received_queries,
                     int64_t received_keys) {
  return home_tokens * price.token_bytes + received_queries * price.kept_query_bytes +
         received_keys * price.kept_key_bytes;
}

}  // namespace distca
