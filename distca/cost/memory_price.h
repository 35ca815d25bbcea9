#pragma once
// Bytes of memory that the tokens of a nano-batch take on a rank between forward and backward. Any
// thread.

#include <cstdint>

namespace distca {

struct MemoryPrice {
  int64_t token_bytes = 0;       // activations of one home token, all layers
  int64_t kept_query_bytes = 0;  // one received query (Q) kept until backward, all layers
  int64_t kept_key_bytes = 0;    // one received key (K and V) kept until backward, all layers
  bool operator==(const MemoryPrice&) const = default;
};

/// Counts: what a rank's home tokens and received tokens keep until backward. Ignores: weights,
/// gradients, optimizer state, buffers of messages under way, the allocator's fragmentation.
int64_t memory_bytes(const MemoryPrice& price, int64_t home_tokens, int64_t received_queries,
                     int64_t received_keys);

}  // namespace distca
