#pragma once
// The cap that every layout with even tokens has to meet. Any thread.

#include "distca/plan/plan.h"

namespace distca {

/// Throws Error(kPlan) with the numbers when the mean number of tokens per worker exceeds
/// cluster.max_tokens_per_worker.
void check_tokens_fit(const PlanRequest& request);

}  // namespace distca
