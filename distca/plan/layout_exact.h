#pragma once
// Layout `sequential-exact`: the released planner's placement (paper 4.4), which cuts anywhere. For
// `greedy-original` and its byte counts only. Any thread. Time proportional to documents + workers.

#include "distca/plan/scheduler.h"

namespace distca {

/// Documents in order fill one worker after another, the mean number of tokens each (to within one
/// token where it is no integer). A document that does not fit the rest of a worker is cut: half of
/// what fits from its front, half from its back, and so on with what is left on the next worker.
/// Throws Error(kPlan) when the mean exceeds cluster.max_tokens_per_worker.
Layout sequential_exact_layout(const PlanRequest& request);

}  // namespace distca
