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

/// The wire between neighbours, as `distca simulate` prices it.
struct MeasuredWire {
  double latency_s = 0;    // from where both sides have started to where a byte has arrived
  double bytes_per_s = 0;  // for what is beyond the burst
  double burst_bytes = 0;  // that go at once after the wire has been idle
  /// Bytes, sent or received, for which all threads of the process but the one that exchanges take
  /// a second of a core. 0 on a device.
  double core_bytes_per_s = 0;
};

/// Measures it while every rank sends to its neighbour: messages of a byte and of two large sizes,
/// each after 20 ms of rest. All ranks call it together, with nothing else under way.
/// `shares_process`: the ranks are threads of one process. For a single rank, all is 0.
MeasuredWire measured_wire(Communicator& comm, bool shares_process);

}  // namespace distca
