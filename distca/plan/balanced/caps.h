#pragma once
// The caps of scheduler `balanced`: rows are moved until every rank keeps them. Any thread may call
// the functions.

#include "distca/plan/balanced/moves.h"

namespace distca {

/// Returns true if there are caps on what a rank sends, receives or holds.
bool has_caps(const Cluster& cluster);
/// The bytes that all ranks together send, receive or hold above the caps. 0 means that all caps
/// are kept.
int64_t overrun(const Assignment& state, const Cluster& cluster);

/// While a rank exceeds a cap, makes the move that brings all ranks nearest to their caps, even
/// where that costs even load. Gives up where no single move helps; make_plan() then refuses the
/// plan. The number of moves is bounded by the number of servers.
void respect_caps(Mover& mover, const Cluster& cluster);

}  // namespace distca
