#pragma once
// Layout `sequential`, the paper's placement (6.1): documents fill one worker after another, in
// their order. Any thread may call it. Time: proportional to documents + workers.

#include "distca/plan/scheduler.h"

namespace distca {

/// Every worker holds the mean number of tokens to within 128. A boundary between workers lies at
/// the allowed cut that is nearest to its exact place, so errors do not add up. If a worker takes a
/// part of what is left of a document, half of this part comes from the front and half from the
/// back, because short and long rows together cost about the same on every worker. What is left at
/// the end is one segment. Throws Error(kPlan) when the mean exceeds cluster.max_tokens_per_worker.
Layout sequential_layout(const PlanRequest& request);

/// Moves `tokens` of `rest` (what is left of a document) to a worker: the first half from the
/// front, in blocks of so many tokens, the second half from the back.
void take_ends(int64_t document, int64_t tokens, int64_t block, Range& rest,
               std::vector<Segment>& worker);

}  // namespace distca
