#pragma once
// Core attention over a batch of tasks on raw pointers: the interface every kernel implements.
//
//   O = softmax(softmax_scale * Q K^T + mask) V
//   LSE = natural log of the row's sum of exponentials
//
// Letters: T tokens, H query heads, G key/value heads (H a multiple of G; query head h reads key
// head h / (H / G)), D head_dim_qk, E head_dim_v (both multiples of 8).
// Memory: all pointers are the caller's; kernels allocate scratch only.
// Thread rule: calls on disjoint outputs may run at the same time.
// Errors: broken shapes are a CHECK.

#include <cstdint>
#include <span>

#include "distca/base/scalar_type.h"

namespace distca::kernels {

using distca::ScalarType;

struct Shape {
  int64_t num_heads = 0;     // H
  int64_t num_kv_heads = 0;  // G
  int64_t head_dim_qk = 0;   // D
  int64_t head_dim_v = 0;    // E
  double softmax_scale = 0;  // usually 1 / sqrt(D)
  /// 0 = none; else a score s = softmax_scale * q.k becomes softcap * tanh(s / softcap).
  double softcap = 0;
};

/// By position in the document: query i may see key j when
///   (not causal or j <= i) and (window_left < 0 or j >= i - window_left)
///   and (window_right < 0 or j <= i + window_right).
/// Bottom-right causal of FlashAttention is causal with the queries at the document's end.
struct Mask {
  bool causal = true;
  int64_t window_left = -1;   // tokens; -1 = unlimited
  int64_t window_right = -1;  // tokens; -1 = unlimited
};

/// A tensor of rows [tokens, heads, dim], innermost dimension contiguous; strides in elements.
struct Rows {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

/// Consecutive keys of one document; a task's keys lie in one or several of these.
struct KeyFragment {
  Rows k{};  // [tokens, G, D]
  Rows v{};  // [tokens, G, E]
  int64_t tokens = 0;
  int64_t position = 0;  // of the first key in the document
};

/// One task: consecutive queries of a document against fragments of its keys.
/// A query whose mask allows no key of the fragments gets O = 0 and LSE = -infinity.
struct ForwardTask {
  Rows q{};    // [q_tokens, H, D]
  Rows o{};    // [q_tokens, H, E], written; type `o_type` of the call
  Rows lse{};  // [q_tokens, H], written; fp64 for fp64 inputs, else fp32; head_stride 0 means 1
  int64_t q_tokens = 0;
  int64_t q_position = 0;  // of the first query in the document
  std::span<const KeyFragment> keys{};
  Mask mask{};
};

/// Gradients of the keys of one fragment, accumulated (+=) in fp64 for fp64 inputs, else fp32.
struct KeyGradient {
  Rows dk{};  // [tokens, G, D]
  Rows dv{};  // [tokens, G, E]
};

/// `lse` and `delta` are the row's over ALL its keys, whether or not this task holds them all:
/// that makes partial gradients add up. delta = rowsum(dO * O).
struct BackwardTask {
  Rows q{};      // [q_tokens, H, D]
  Rows d_o{};    // [q_tokens, H, E]
  Rows lse{};    // [q_tokens, H], as in ForwardTask
  Rows delta{};  // [q_tokens, H], the type of lse
  Rows dq{};     // [q_tokens, H, D], accumulated (+=) in fp64 for fp64 inputs, else fp32
  int64_t q_tokens = 0;
  int64_t q_position = 0;
  std::span<const KeyFragment> keys{};
  std::span<const KeyGradient> key_gradients{};  // [keys.size()]
  Mask mask{};
};

}  // namespace distca::kernels
