#pragma once
// Scheduler `balanced`: takes moves back and makes better ones. Any thread.

#include "distca/plan/scheduler_balanced_moves.h"

namespace distca {

/// `rounds` times: the rows that the receiver which pays most per load took, every other time also
/// those of a second one with the same documents, go home and are given away anew; kept where that
/// lowers mover.price() and no server is further above its bound. Deterministic: bounded by rounds,
/// never by a clock.
void improve(Mover& mover, int rounds);

}  // namespace distca
