#pragma once
// What every layout refuses: more tokens than the workers may hold. Both functions throw
// Error(kPlan) with the numbers. Any thread may call them.

#include "distca/plan/plan.h"

namespace distca {

/// Throws when the mean number of tokens exceeds cluster.max_tokens_per_worker.
void check_tokens_fit(const PlanRequest& request);

/// For layouts with uneven tokens: throws also when a worker holds a block or more above
/// cluster.max_tokens_per_worker.
void check_workers_fit(const PlanRequest& request, const Layout& layout);

}  // namespace distca
