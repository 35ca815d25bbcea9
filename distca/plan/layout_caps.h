#pragma once
// What all layouts refuse: more tokens than the workers may hold. Any thread.

#include "distca/plan/plan.h"

namespace distca {

/// Throws Error(kPlan) with the numbers when the mean exceeds cluster.max_tokens_per_worker.
void check_tokens_fit(const PlanRequest& request);

/// Throws Error(kPlan) with the numbers when a worker holds more than cluster.max_tokens_per_worker
/// by a block or more: for layouts whose tokens are not even.
void check_workers_fit(const PlanRequest& request, const Layout& layout);

}  // namespace distca
