#pragma once
// Shapes of the public headers in the planner's words. Inside; any thread.

#include <cstdint>

#include "distca/api/planner.h"
#include "distca/cost/attention_cost.h"

namespace distca::api {

/// Throws Error(kPlan) for heads or dims that nothing computes.
AttentionShape attention_shape(const Shape& shape, int64_t window_left = -1);

}  // namespace distca::api
