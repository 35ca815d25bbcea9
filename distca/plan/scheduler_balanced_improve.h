#pragma once
// Scheduler `balanced`: takes moves back and makes better ones. Any thread.

#include "distca/plan/scheduler_balanced_moves.h"

namespace distca {

/// `rounds` times: the rows of the receiver that pays most per load, and of two that took from the
/// same donors, go home and are given away anew; kept where that lowers mover.price() and no server
/// is further above its bound. Deterministic: bounded by rounds, never by a clock.
void improve(Mover& mover, int rounds);

}  // namespace distca
