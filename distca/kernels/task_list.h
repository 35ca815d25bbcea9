#pragma once
// Checks of task lists. Every kernel makes them before it computes. Letters and shapes are those of
// kernels/attention.h. A fault is a CHECK: one line that names the task or buffer, the field, its
// value and what would be right. Thread rule: pure functions.

#include <cstdint>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// The largest position in a document, and the largest window. Sums of a few of them cannot
/// overflow.
constexpr int64_t kMostPosition = int64_t{1} << 40;

/// Both check the shape, that the buffers have the fields that the pass needs, that tasks name
/// existing rows of their buffers, and that the positions of their keys ascend. `type` is that of
/// Q, K and V. `o_type` is that of O, which must be `type` or fp32 (fp64 for fp64).
void check_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list);
void check_backward(const Shape& shape, const TaskList& list);

}  // namespace distca::kernels
