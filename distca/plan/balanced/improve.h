#pragma once
// Scheduler `balanced`: takes moves back and makes better ones. Any thread.

#include "distca/plan/balanced/moves.h"

namespace distca {

/// `rounds` times: the rows that the receiver which pays most per load took, every other time also
/// those of a second one with the same documents, go home and are given away anew; kept where that
/// lowers mover.price() and no server is further above its bound and no rank further beyond a cap.
/// Deterministic: bounded by rounds, never by a clock.
void improve(Mover& mover, const Cluster& cluster, int rounds);

/// Where caps leave a server above its bound, one that knows its document takes some of its rows,
/// however full, and gives others away; kept where that lowers the load above bounds markedly and
/// no rank is further beyond a cap. A few hundred trials at most.
void unstick(Mover& mover, const Cluster& cluster);

}  // namespace distca
