#pragma once
// Attention as the formula says it, in double, one query row after another: slow and obvious. Every
// faster kernel is tested against it.
//
// Memory: the keys of a task, for one head, in double. Same bits: keys are summed in ascending
// position, so the forward result of a row does not depend on how queries are cut into tasks and
// keys into ranges. Errors: a wrong shape or list is a CHECK. Thread rule: calls whose outputs are
// disjoint may run at the same time.

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// `type` is that of Q, K and V. `o_type` is that of O: either `type` or, for partial results, the
/// accumulator type.
void reference_forward(const Shape& shape, ScalarType type, ScalarType o_type,
                       const TaskList& list);

/// dO is of `type`. Gradients are added to dq, dk and dv, once for each task and number.
void reference_backward(const Shape& shape, ScalarType type, const TaskList& list);

}  // namespace distca::kernels
