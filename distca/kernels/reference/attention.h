#pragma once
// Attention as the formula says it, in double, one query row after another: slow and obvious. Every
// faster kernel is tested against it.
//
// Memory: a task's keys of one head in double. The forward of a row is bitwise the same however
// queries are cut into tasks and keys into ranges: keys are summed in ascending position.
// Errors: broken shapes and lists are a CHECK. Thread rule: calls on disjoint outputs may run at
// the same time.

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// `type`: of Q, K, V. `o_type`: of O, either `type` or the accumulator type for partial results.
void reference_forward(const Shape& shape, ScalarType type, ScalarType o_type,
                       const TaskList& list);

/// dO is of `type`; gradients are added to dq, dk, dv, once per task and element.
void reference_backward(const Shape& shape, ScalarType type, const TaskList& list);

}  // namespace distca::kernels
