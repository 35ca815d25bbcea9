#pragma once
// The cost of core attention in one layer: its work in (query, key) pairs, and the bytes of each
// token that travels. All figures are integers, so that every rank computes the same plan. Any
// thread may call the functions.

#include <cstdint>

#include "distca/base/integers.h"

namespace distca {

/// The keys that a query sees: all keys of the task, or those up to the query's own position.
enum class MaskType { kFull, kCausal };

/// The shapes of core attention as one rank sees them, so heads are already divided by tensor
/// parallelism. The defaults are those of Llama-8B.
struct AttentionShape {
  int64_t num_heads = 32;     // heads of Q
  int64_t num_kv_heads = 8;   // heads of K and V; fewer than num_heads for GQA
  int64_t head_dim_qk = 128;  // size of each head of Q and K
  int64_t head_dim_v = 128;   // size of each head of V and O
  int64_t element_bytes = 2;  // bytes of a number that travels, 2 for bf16
  /// A query sees itself and this many keys before it. With -1, it sees all keys before it.
  int64_t window_left = -1;

  int64_t q_token_bytes() const { return num_heads * head_dim_qk * element_bytes; }
  int64_t kv_token_bytes() const {
    return num_kv_heads * (head_dim_qk + head_dim_v) * element_bytes;
  }
  int64_t o_token_bytes() const { return num_heads * head_dim_v * element_bytes; }
  /// The bytes of a token's Q and O, divided by those of its K and V.
  double row_per_key() const {
    return static_cast<double>(q_token_bytes() + o_token_bytes()) /
           static_cast<double>(kv_token_bytes());
  }
  bool operator==(const AttentionShape&) const = default;
};

/// The number of (query, key) pairs of q x kv that the mask allows. Ranges are positions in the
/// document. `window_left` is that of AttentionShape and applies to causal masks.
/// Counts: pairs. Ignores: tile padding, kernel launches, heads (all tasks of a layer have equally
/// many).
int64_t attention_pairs(const Range& q, const Range& kv, MaskType mask, int64_t window_left = -1);

/// The keys that the queries `q` may see under a causal mask, from a multiple of 128 on.
Range visible_keys(const Range& q, int64_t window_left = -1);

}  // namespace distca
