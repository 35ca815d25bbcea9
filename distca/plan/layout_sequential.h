#pragma once
// Layout `sequential`, the paper's placement (4.4): documents in order fill one worker after
// another. Any thread. Time proportional to documents + workers.

#include "distca/plan/scheduler.h"

namespace distca {

/// Every worker holds the mean number of tokens to within 128: a boundary between workers lies at
/// the allowed cut nearest to its exact place, so errors do not add up. A worker that takes part of
/// what is left of a document takes half of its share from the front and half from the back (short
/// and long rows together cost about the same on every worker); what is left at the end is one
/// segment. Throws Error(kPlan) when the mean exceeds cluster.max_tokens_per_worker.
Layout sequential_layout(const PlanRequest& request);

}  // namespace distca
