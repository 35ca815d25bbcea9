#pragma once
// attention_shape() says the public Shape in the planner's words. It is internal to this folder and
// may be called from any thread.

#include <cstdint>

#include "distca/api/planner.h"
#include "distca/cost/attention_shape.h"

namespace distca::api {

/// Throws Error(kPlan) for heads or head sizes that no kernel computes.
AttentionShape attention_shape(const Shape& shape, int64_t window_left = -1);

}  // namespace distca::api
