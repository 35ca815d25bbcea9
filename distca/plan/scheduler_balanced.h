#pragma once
// Scheduler `balanced`: even load for the fewest bytes on a layout that is there (paper 4.2, 4.4).
// Any thread.

#include "distca/plan/scheduler.h"

namespace distca {

/// Every query starts where it lives. A server may carry (1 + tolerance) times its share of the
/// load; those above give shards to those below, the move with the lowest price per load first.
///
/// Counts: load as TaskPrice; Q, O and keys of every move at the price of their links, a key token
/// once per server, keys that the donor no longer reads; the caps on bytes and memory.
/// Ignores: latency, tile padding in the choice of shapes.
std::vector<Task> schedule_balanced(const PlanRequest& request, const Layout& layout);

}  // namespace distca
