#pragma once
// Scheduler `balanced`: moves rows until every rank keeps its caps. Any thread.

#include "distca/plan/scheduler_balanced_moves.h"

namespace distca {

/// While a rank sends, receives or holds more than the cluster's caps allow, makes the move that
/// brings all ranks nearest to them, even where that costs even load. Gives up where no single move
/// helps: make_plan() refuses what is left. Bounded by the number of servers.
void respect_caps(Mover& mover, const Cluster& cluster);

}  // namespace distca
