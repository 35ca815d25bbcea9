#pragma once
// What a layout will cost once a scheduler has evened out its load: to choose among layouts. Any
// thread.

#include <cstdint>
#include <vector>

#include "distca/cost/task_price.h"
#include "distca/plan/plan.h"

namespace distca {

struct LayoutPrice {
  int64_t bytes = 0;    // Q, K, V and O
  int64_t busiest = 0;  // most Q, K, V that one worker sends or receives
};

/// `shares`: load per worker that needs no moving, but for the tolerance.
/// Counts: keys that travel when queries are computed at home; for load above a share, one cheapest
/// shard of the worker's costliest segment, half of its keys new to whoever takes it (in `busiest`:
/// only its queries, sent from home).
LayoutPrice price_layout(const PlanRequest& request, const TaskPrice& price, const Layout& layout,
                         const std::vector<int64_t>& shares);

}  // namespace distca
