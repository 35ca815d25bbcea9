#pragma once
// How fast the exchange's wire is, for plan.tolerance = auto. One thread a rank.

#include <cstdint>

#include "distca/comm/communicator.h"

namespace distca {

/// Bytes a microsecond that the slowest rank sends to its neighbour while all others send too, to
/// three digits, the same on every rank; 0 for one rank. Called by all ranks together, with nothing
/// else under way.
/// Counts: the backend's whole way, its own threads included, best of 4 rounds of 4 MiB. Ignores:
/// compute beside it, which takes processor time from Gloo's threads on a CPU; several peers at
/// once; changes later on: it is measured once.
int64_t measured_bytes_per_us(Communicator& comm);

}  // namespace distca
