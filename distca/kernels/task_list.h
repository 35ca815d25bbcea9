#pragma once
// Checks of task lists, before any kernel runs.
//
// Letters and shapes: kernels/attention.h. A fault is a CHECK, in one line that names the task or
// buffer, the field, its value and what would be right. Thread rule: pure functions.

#include <cstdint>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// Positions of a document and windows end here: sums of a few of them do not overflow.
constexpr int64_t kMostPosition = int64_t{1} << 40;

/// What every kernel checks first: the shape, that the buffers have the fields of the pass, that
/// tasks name rows of their buffers and keys that ascend in position.
/// `type`: of Q, K, V. `o_type`: of O, `type` or fp32 (fp64 for fp64).
void check_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list);
void check_backward(const Shape& shape, const TaskList& list);

}  // namespace distca::kernels
