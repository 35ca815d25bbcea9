#pragma once
// What a layout and tasks cost, counted from the tasks alone: schedulers only decide. Any thread.

#include <vector>

#include "distca/plan/plan.h"

namespace distca {

/// [max(num_workers, num_servers)] of a plan whose layout and tasks are there.
/// Counts: pairs the mask allows; Q and O of every query token computed away from home; K and V of
/// every key token once per server that reads it and does not hold it. Ignores: LSE, message
/// headers, backward. Needs a layout that holds every token once. Time: O(n log n) in tasks,
/// segments and transfers.
std::vector<ServerLoad> account(const Plan& plan, const AttentionProfile* profile = nullptr);

}  // namespace distca
