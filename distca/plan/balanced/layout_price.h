#pragma once
// The cost of a layout once a scheduler has evened out its load. Layouts are chosen by this price.
// Any thread may call the function.

#include <cstdint>
#include <vector>

#include "distca/cost/task_price.h"
#include "distca/plan/plan.h"

namespace distca {

struct LayoutPrice {
  int64_t bytes = 0;    // Q, K, V and O
  int64_t busiest = 0;  // Q, K, V of the worker that sends or receives most
};

/// `shares` is the load of each worker that needs no moving (the tolerance comes on top).
/// Counts: keys that travel when queries are computed at home; for load above a share, the cheapest
/// shards of the worker's costliest segments, with half of their keys new to the receiver. In
/// `busiest`, only the queries of these shards count, as sent from home.
LayoutPrice price_layout(const PlanRequest& request, const TaskPrice& price, const Layout& layout,
                         const std::vector<int64_t>& shares);

}  // namespace distca
