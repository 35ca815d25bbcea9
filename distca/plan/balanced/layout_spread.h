#pragma once
// Layout `balanced` with options.spread: hot keys change places with cold ones. Any thread.

#include <cstdint>
#include <vector>

#include "distca/cost/task_price.h"
#include "distca/plan/plan.h"

namespace distca {

/// Lowers the largest send: while a worker sends more than `goal_permille` of the largest receive,
/// rows of its that most servers read change places with a whole document of about as many tokens
/// that nobody else reads, where the load stays below shares[worker] x (1 + tolerance), cheapest
/// first. Segments of a worker are sorted by document and position, before and after. No window:
/// hot keys come from long contexts. Time: moves (workers at most x 4) x segments.
void spread_hot_rows(const PlanRequest& request, const TaskPrice& price,
                     const std::vector<int64_t>& shares, int64_t goal_permille, Layout& layout);

}  // namespace distca
