#pragma once
// The shape of core attention in one layer: heads, sizes and mask, and the bytes of each token that
// travels. All figures are integers, so that every rank computes the same plan. Any thread may call
// the functions.

#include <cstdint>

#include "distca/base/scalar_type.h"
#include "distca/cost/mask.h"

namespace distca {

/// The shapes of core attention as one rank sees them, so heads are already divided by tensor
/// parallelism. The defaults are those of Llama-8B.
struct AttentionShape {
  int64_t num_heads = 32;                   // heads of Q
  int64_t num_kv_heads = 8;                 // heads of K and V; fewer than num_heads for GQA
  int64_t head_dim_qk = 128;                // size of each head of Q and K
  int64_t head_dim_v = 128;                 // size of each head of V and O
  ScalarType type = ScalarType::kBFloat16;  // type of the numbers that travel
  Mask mask;                                // a causal one

  int64_t element_bytes() const { return distca::element_bytes(type); }
  int64_t q_token_bytes() const { return num_heads * head_dim_qk * element_bytes(); }
  int64_t kv_token_bytes() const {
    return num_kv_heads * (head_dim_qk + head_dim_v) * element_bytes();
  }
  int64_t o_token_bytes() const { return num_heads * head_dim_v * element_bytes(); }
  /// Multiply-adds of a (query, key) pair, forward.
  int64_t pair_products() const { return num_heads * (head_dim_qk + head_dim_v); }
  /// The bytes of a token's Q and O, divided by those of its K and V.
  double row_per_key() const {
    return static_cast<double>(q_token_bytes() + o_token_bytes()) /
           static_cast<double>(kv_token_bytes());
  }
  bool operator==(const AttentionShape&) const = default;
};

}  // namespace distca
