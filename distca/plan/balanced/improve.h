#pragma once
// The second part of scheduler `balanced`: it takes moves back and makes better ones. Any thread
// may call the functions.

#include "distca/plan/balanced/moves.h"

namespace distca {

/// In each of `rounds` rounds, finds the receiver that pays most bytes for each unit of the load
/// that it took. Its rows go home and are given away anew; in every other round also those of a
/// second receiver with the same documents. The change is kept where it lowers mover.price() and
/// neither the load above bounds nor the bytes above caps grow. It is deterministic: bounded by
/// rounds, never by a clock.
void improve(Mover& mover, const Cluster& cluster, int rounds);

/// For servers that caps leave above their bound: another server that knows the document takes some
/// of the rows, however full it is, and gives others away. A change is kept where it markedly
/// lowers the load above bounds and the bytes above caps do not grow. Makes at most a few hundred
/// trials.
void unstick(Mover& mover, const Cluster& cluster);

}  // namespace distca
