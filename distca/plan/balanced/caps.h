#pragma once
// Scheduler `balanced`: moves rows until every rank keeps its caps. Any thread.

#include "distca/plan/balanced/moves.h"

namespace distca {

/// On what a rank sends, receives or holds.
bool has_caps(const Cluster& cluster);
/// Bytes by which ranks send, receive or hold more than the caps allow, added up; 0: all are kept.
int64_t overrun(const Assignment& state, const Cluster& cluster);

/// While a rank sends, receives or holds more than the cluster's caps allow, makes the move that
/// brings all ranks nearest to them, even where that costs even load. Gives up where no single move
/// helps: make_plan() refuses what is left. Bounded by the number of servers.
void respect_caps(Mover& mover, const Cluster& cluster);

}  // namespace distca
