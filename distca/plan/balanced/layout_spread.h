#pragma once
// Layout `balanced` with options.spread: keys that many servers read change places with others. Any
// thread may call the function.

#include <cstdint>
#include <vector>

#include "distca/cost/task_price.h"
#include "distca/plan/plan.h"

namespace distca {

/// Lowers the largest send. While a worker sends more than the largest receive, the rows of it that
/// most servers read change places with about as many tokens of another document on another worker,
/// which fewer servers read. The swap that makes the fewest keys travel for its gain goes first.
/// Load stays below shares[worker] x (1 + tolerance). Segments of a worker are sorted by document
/// and position, before and after. Does nothing with a window: keys that many read come from long
/// contexts. Time: moves (at most 4 x workers) x segments.
void spread_hot_rows(const PlanRequest& request, const TaskPrice& price,
                     const std::vector<int64_t>& shares, Layout& layout);

}  // namespace distca
