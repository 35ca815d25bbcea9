#pragma once
// What core attention of one layer costs: work in (query, key) pairs, bytes per token that travels.
// Integers only, so that every rank computes the same plan. Any thread.

#include <cstdint>

#include "distca/base/integers.h"

namespace distca {

enum class MaskType { kFull, kCausal };

/// Shapes of core attention as one rank sees them (already divided by tensor parallelism).
struct AttentionShape {
  int64_t num_heads = 32;
  int64_t num_kv_heads = 8;
  int64_t head_dim_qk = 128;
  int64_t head_dim_v = 128;
  int64_t element_bytes = 2;  // bf16
  int64_t window_left = -1;   // a query sees itself and this many keys before it; -1: all

  int64_t q_token_bytes() const { return num_heads * head_dim_qk * element_bytes; }
  int64_t kv_token_bytes() const {
    return num_kv_heads * (head_dim_qk + head_dim_v) * element_bytes;
  }
  int64_t o_token_bytes() const { return num_heads * head_dim_v * element_bytes; }
  bool operator==(const AttentionShape&) const = default;
};

/// Number of (query, key) pairs of q x kv that the mask allows; positions in the document.
/// `window_left`: as in AttentionShape, for causal masks.
/// Counts: pairs. Ignores: tile padding, kernel launch, heads (equal for all tasks of a layer).
int64_t attention_pairs(const Range& q, const Range& kv, MaskType mask, int64_t window_left = -1);

/// The keys that the queries `q` may see under a causal mask, begun at a multiple of 128.
Range visible_keys(const Range& q, int64_t window_left = -1);

}  // namespace distca
