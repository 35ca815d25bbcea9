#pragma once
// Core attention over a list of tasks on raw pointers: the interface every kernel implements. A
// call is given a table of buffers and tasks that name rows of them.
//
//   O = softmax(softmax_scale * Q K^T + mask) V
//   LSE = natural log of the row's sum of exponentials
//
// Letters: T tokens, H query heads, G key/value heads (H a multiple of G; query head h reads key
// head h / (H / G)), D head_dim_qk, E head_dim_v (both multiples of 8).
// Memory: all pointers are the caller's; kernels allocate scratch only.
// Thread rule: calls on disjoint outputs may run at the same time.
// Errors: a broken shape or list is a CHECK. Every kernel looks at both before it computes, as
// kernels/task_list.h says.

#include <cstdint>
#include <vector>

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
/// FlashAttention's bottom-right causal mask is `causal` for queries at the end of the document.
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

/// Rows of queries and of what belongs to them. Forward reads q and writes o and lse. Backward
/// reads q, d_o, lse and delta and adds to dq. The fields that a pass does not use may be empty.
/// Backward's lse and delta are the row's over ALL its keys, whether or not one task holds them
/// all: that makes partial gradients add up.
struct QueryBuffer {
  int64_t tokens = 0;
  Rows q{};      // [tokens, H, D]
  Rows o{};      // [tokens, H, E], written; type `o_type` of the call
  Rows lse{};    // [tokens, H, 1]; fp64 for fp64 inputs, else fp32
  Rows d_o{};    // [tokens, H, E]
  Rows delta{};  // [tokens, H, 1] = rowsum(dO * O), the type of lse
  Rows dq{};     // [tokens, H, D], accumulated (+=) in fp64 for fp64 inputs, else fp32
};

/// Rows of keys and values. Backward adds to dk and dv, in the type of dq.
struct KeyBuffer {
  int64_t tokens = 0;
  Rows k{};   // [tokens, G, D]
  Rows v{};   // [tokens, G, E]
  Rows dk{};  // [tokens, G, D]
  Rows dv{};  // [tokens, G, E]
};

/// Rows [row, row + tokens) of a key buffer: the keys of one document from `position` on.
struct KeyRange {
  int64_t buffer = 0;  // index in TaskList::keys
  int64_t row = 0;
  int64_t tokens = 0;
  int64_t position = 0;
};

/// Rows [q_row, q_row + q_tokens) of a query buffer: consecutive queries of a document, which
/// attend to some of its keys. A query whose mask allows none of them gets O = 0 and
/// LSE = -infinity.
struct Task {
  int64_t query_buffer = 0;  // index in TaskList::queries
  int64_t q_row = 0;
  int64_t q_tokens = 0;
  int64_t q_position = 0;        // of the first query in the document
  std::vector<KeyRange> keys{};  // disjoint, ascending position
  Mask mask{};
};

/// What a call computes. (buffer, row) alone says where a row lies: the fields that a pass writes
/// (o, lse; dq, dk, dv) share no memory with any other field of any buffer, so two tasks write to
/// one place only if they name the same rows of the same buffer. Buffers may share what is only
/// read: a partial result of some queries is written through a buffer of its own, which has the
/// same q. Forward: no two tasks write the same rows. Backward: several may add to the same rows.
struct TaskList {
  std::vector<QueryBuffer> queries{};
  std::vector<KeyBuffer> keys{};
  std::vector<Task> tasks{};
};

}  // namespace distca::kernels
