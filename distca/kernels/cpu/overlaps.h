#pragma once
// Which tasks of a backward batch add to the same memory.
// Errors: none; tasks are as the checks of cpu/attention.h leave them. Thread rule: pure.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// Of each task, by index. Groups are named by their first task.
struct TaskOverlaps {
  std::vector<int64_t> keys;         // group of tasks connected by overlapping dk or dv
  std::vector<int64_t> queries;      // ... by overlapping dq
  std::vector<int64_t> families;     // ... by either
  std::vector<bool> strict;          // [family] some of them overlap otherwise than head on head,
                                     // token on token, position on position
  std::vector<int64_t> query_token;  // of the task's first dq row, counted alike within a group
};

/// Gradients in fp32. In time n log n of all fragments (times the heads, where the heads of a
/// fragment lie apart). Interleaved tensors, as [tokens, 3, heads, dim], do not overlap.
TaskOverlaps find_overlaps(const Shape& shape, std::span<const BackwardTask> tasks);

}  // namespace distca::kernels
