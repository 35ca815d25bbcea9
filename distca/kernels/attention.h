#pragma once
// Core attention over a list of tasks on raw pointers: the interface that every kernel implements.
// A call is given a table of buffers, and tasks that name rows of them.
//
//   O = softmax(softmax_scale * Q K^T + mask) V
//   LSE = natural logarithm of the sum of a row's exponentials
//
// This computes one causal document of T tokens on the CPU (kernels/cpu/attention.h). q, k, v, o
// and lse are Rows:
//
//     TaskList list;
//     list.queries = {{.tokens = T, .q = q, .o = o, .lse = lse}};
//     list.keys = {{.tokens = T, .k = k, .v = v}};
//     list.tasks = {{.q_tokens = T, .keys = {{.tokens = T}}}};
//     cpu_forward(shape, ScalarType::kFloat32, ScalarType::kFloat32, list, pool);
//
// Letters: T tokens, H query heads, G key/value heads (H is a multiple of G, and query head h reads
// key head h / (H / G)), D head_dim_qk, E head_dim_v (both are multiples of 8).
//
// Memory: all pointers are the caller's. Kernels allocate only scratch memory.
// Errors: a wrong shape or list is a CHECK. Every kernel checks both before it computes
// (kernels/task_list.h).
// Thread rule: calls whose outputs are disjoint may run at the same time.

#include <cstdint>
#include <vector>

#include "distca/base/scalar_type.h"

namespace distca::kernels {

using distca::ScalarType;

/// The heads of the attention, and how scores are scaled.
struct Shape {
  int64_t num_heads = 0;     // H
  int64_t num_kv_heads = 0;  // G
  int64_t head_dim_qk = 0;   // D
  int64_t head_dim_v = 0;    // E
  double softmax_scale = 0;  // usually 1 / sqrt(D)
  /// If it is not 0, a score s = softmax_scale * q.k becomes softcap * tanh(s / softcap).
  double softcap = 0;
};

/// The keys that a query sees, by position in the document. Query i sees key j if
///   (not causal or j <= i) and (window_left < 0 or j >= i - window_left)
///   and (window_right < 0 or j <= i + window_right).
/// FlashAttention's bottom-right causal mask is `causal` if the queries are at the document's end.
struct Mask {
  bool causal = true;
  int64_t window_left = -1;   // tokens. -1 means no limit.
  int64_t window_right = -1;  // tokens. -1 means no limit.
};

/// A tensor [tokens, heads, dim] of numbers, whose last dimension is contiguous. Strides are in
/// numbers, not bytes.
struct Rows {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

/// Rows of queries and what belongs to them. Forward reads q, and writes o and lse. Backward reads
/// q, d_o, lse and delta, and adds to dq. Fields that a pass does not use may be empty. In
/// backward, lse and delta of a row must be those over ALL its keys, even if a task has only some
/// of them; only then do the gradients of several tasks add up.
struct QueryBuffer {
  int64_t tokens = 0;
  Rows q{};      // [tokens, H, D]
  Rows o{};      // [tokens, H, E], in the call's `o_type`
  Rows lse{};    // [tokens, H, 1], fp64 for fp64 inputs, else fp32
  Rows d_o{};    // [tokens, H, E]
  Rows delta{};  // [tokens, H, 1] = rowsum(dO * O), in the type of lse
  Rows dq{};     // [tokens, H, D], added to, fp64 for fp64 inputs, else fp32
};

/// Rows of keys and values. Backward adds to dk and dv, which have the type of dq.
struct KeyBuffer {
  int64_t tokens = 0;
  Rows k{};   // [tokens, G, D]
  Rows v{};   // [tokens, G, E]
  Rows dk{};  // [tokens, G, D]
  Rows dv{};  // [tokens, G, E]
};

/// Keys of one document: rows [row, row + tokens) of a key buffer.
struct KeyRange {
  int64_t buffer = 0;  // index in TaskList::keys
  int64_t row = 0;
  int64_t tokens = 0;
  int64_t position = 0;  // position of the first key in the document
};

/// Consecutive queries of a document, which attend to some of its keys: rows [q_row, q_row +
/// q_tokens) of a query buffer. The result of a query that sees none of these keys is O = 0 and
/// LSE = -infinity.
struct Task {
  int64_t query_buffer = 0;  // index in TaskList::queries
  int64_t q_row = 0;
  int64_t q_tokens = 0;
  int64_t q_position = 0;        // position of the first query in the document
  std::vector<KeyRange> keys{};  // disjoint, ascending position
  Mask mask{};
};

/// The work of one call. Buffer and row alone say where a number lies. Therefore a field that a
/// pass writes (o, lse; dq, dk, dv) must share no memory with another field of any buffer. Two
/// tasks then write to the same place only if they name the same rows of the same buffer. Fields
/// that are only read may share memory. A partial result, for example, is written through a query
/// buffer of its own, which has the same q as another. In forward, no two tasks may write the same
/// rows. In backward, several tasks may add to the same rows.
struct TaskList {
  std::vector<QueryBuffer> queries{};
  std::vector<KeyBuffer> keys{};
  std::vector<Task> tasks{};
};

}  // namespace distca::kernels
