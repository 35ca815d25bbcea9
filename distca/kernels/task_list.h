#pragma once
// Checks of task lists, before any kernel runs: of lists that this program made, and, with all that
// can be wrong about memory, of lists from outside. And lists of packed sequences.
//
// Letters and shapes: kernels/attention.h. Errors: one line that names the task or buffer, the
// field, its value and what would be right. Thread rule: pure functions.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// Positions of a document end here: sums of a few of them do not overflow. So do windows of lists
/// from outside.
constexpr int64_t kMostPosition = int64_t{1} << 40;

/// What every kernel checks first: the shape, that the buffers have the fields of the pass, that
/// tasks name rows of their buffers and keys that ascend in position. A fault is a CHECK.
/// `type`: of Q, K, V, dO. `o_type`: of O, `type` or fp32 (fp64 for fp64).
void check_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list);
void check_backward(const Shape& shape, ScalarType type, const TaskList& list);

/// How much memory there is from `data` of each field on, in elements.
struct QueryMemory {
  int64_t q = 0, o = 0, lse = 0;
  int64_t d_o = 0, delta = 0, dq = 0;
};
struct KeyMemory {
  int64_t k = 0, v = 0;
  int64_t dk = 0, dv = 0;
};
/// One for each buffer of a list.
struct ListMemory {
  std::vector<QueryMemory> queries{};
  std::vector<KeyMemory> keys{};
};

/// A list from outside, checked as above and moreover: its rows lie in the memory that there is,
/// aligned to their elements; what is written shares no memory with any other field (fields may lie
/// between each other's tokens, as in [tokens, 3, heads, dim], but not between heads that lie
/// apart); in forward no two tasks write the same rows. Throws Error(kData).
/// Returns the list, with harmless values for strides that are never used.
TaskList forward_list(const Shape& shape, ScalarType type, ScalarType o_type, TaskList list,
                      const ListMemory& memory);
TaskList backward_list(const Shape& shape, ScalarType type, TaskList list,
                       const ListMemory& memory);

/// Packed sequences as FlashAttention names them: queries [cu_seqlens_q[i], cu_seqlens_q[i + 1]) of
/// query buffer 0 against keys [cu_seqlens_k[i], cu_seqlens_k[i + 1]) of key buffer 0. The mask is
/// aligned bottom right: the last query stands where the last key does. Throws Error(kData).
std::vector<Task> varlen_tasks(std::span<const int64_t> cu_seqlens_q,
                               std::span<const int64_t> cu_seqlens_k, const Mask& mask = {});

}  // namespace distca::kernels
