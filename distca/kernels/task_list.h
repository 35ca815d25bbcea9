#pragma once
// Task lists as they come from outside: buffers of rows, and tasks that name ranges of them. What
// is wrong with one is said before any kernel runs: out of bounds, overflowing, overlapping.
//
// Letters and shapes: kernels/attention.h. Errors: Error(kData), one line that names the task or
// buffer, the field, its value and what would be right. Thread rule: pure functions; the batch they
// return points into the caller's buffers and into itself.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// Positions of a document and windows end here: sums of a few of them do not overflow.
constexpr int64_t kMostPosition = int64_t{1} << 40;

/// Rows, and how much memory there is: `elements` from rows.data on.
struct BufferRows {
  Rows rows{};
  int64_t elements = 0;
};

/// Rows of queries. Forward reads q and writes o, lse; backward reads q, d_o, lse, delta and adds
/// to dq. The others may stay empty.
struct ListedQueryBuffer {
  int64_t tokens = 0;
  BufferRows q{}, o{}, lse{};
  BufferRows d_o{}, delta{}, dq{};
};

/// Rows of keys and values. Backward adds to dk, dv.
struct ListedKeyBuffer {
  int64_t tokens = 0;
  BufferRows k{}, v{};
  BufferRows dk{}, dv{};
};

/// Rows [row, row + tokens) of a key buffer are the keys at `position` and on.
struct ListedKeys {
  int64_t buffer = 0;
  int64_t row = 0;
  int64_t tokens = 0;
  int64_t position = 0;
};

/// Rows [q_row, q_row + q_tokens) of a query buffer against keys that ascend in position.
struct ListedTask {
  int64_t query_buffer = 0;
  int64_t q_row = 0;
  int64_t q_tokens = 0;
  int64_t q_position = 0;
  std::vector<ListedKeys> keys{};
  Mask mask{};
};

/// What is written (o, lse; dq, dk, dv) overlaps no other field of any buffer; fields may lie
/// between each other's tokens, as in [tokens, 3, heads, dim], but not between heads that lie
/// apart. No two tasks write the same o; several may add to the same dq, dk, dv.
struct TaskList {
  std::vector<ListedQueryBuffer> queries{};
  std::vector<ListedKeyBuffer> keys{};
  std::vector<ListedTask> tasks{};
};

/// What a kernel is given. Its tasks point into it.
struct ForwardBatch {
  ForwardBatch() = default;
  ForwardBatch(ForwardBatch&&) = default;
  std::vector<ForwardTask> tasks;
  std::vector<KeyFragment> fragments;
};
struct BackwardBatch {
  BackwardBatch() = default;
  BackwardBatch(BackwardBatch&&) = default;
  std::vector<BackwardTask> tasks;
  std::vector<KeyFragment> fragments;
  std::vector<KeyGradient> gradients;
};

/// `type`: of Q, K, V, dO. `o_type`: of O, `type` or fp32 (fp64 for fp64).
ForwardBatch forward_batch(const Shape& shape, ScalarType type, ScalarType o_type,
                           const TaskList& list);
BackwardBatch backward_batch(const Shape& shape, ScalarType type, const TaskList& list);

/// Packed sequences as FlashAttention names them: queries [cu_seqlens_q[i], cu_seqlens_q[i + 1]) of
/// query buffer 0 against keys [cu_seqlens_k[i], cu_seqlens_k[i + 1]) of key buffer 0. The mask is
/// aligned bottom right: the last query stands where the last key does.
std::vector<ListedTask> varlen_tasks(std::span<const int64_t> cu_seqlens_q,
                                     std::span<const int64_t> cu_seqlens_k, const Mask& mask = {});

}  // namespace distca::kernels
