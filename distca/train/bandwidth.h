#pragma once
// Measures how fast the ranks exchange messages, for plan.tolerance = auto. Thread rule: one thread
// of each rank.

#include <cstdint>

#include "distca/comm/communicator.h"

namespace distca {

/// Measures, while every rank sends to its neighbour, how many bytes a microsecond the slowest rank
/// sends. The result is rounded to three digits and is the same on every rank; for a single rank it
/// is 0. All ranks call it together, with nothing else under way.
/// Counts: the whole path through the backend with its own threads; the best of 4 rounds of 4 MiB,
/// of 256 MiB on a device. Ignores: compute at the same time, which takes processor time from
/// Gloo's threads on a CPU; several peers at once; later changes, because it is measured once.
int64_t measured_bytes_per_us(Communicator& comm);

}  // namespace distca
