#pragma once
// Measures the settings of bench/overlap, on each of two ranks alike; rank 0 writes the lines.
// Thread rule: one thread a rank, pinned, all ranks in the same order.

#include <span>

#include "bench/overlap_settings.h"
#include "distca/comm/communicator.h"
#include "distca/model/llama.h"

namespace distca::bench {

constexpr int kNanoBatches = 2;  // nano-batches of a step

struct OverlapOptions {
  LlamaConfig model;
  int rounds = 15;
  int shown_rounds = 5;  // rounds of settings and arms that are not judged
};

/// Bytes a second that each of the two ranks sends while the other does, on a wire that is limited
/// to `mb_per_s`. 0 means that it is not limited.
double wire_rate(Communicator& comm, double mb_per_s);

/// Measures each setting: limits the wire of this rank's namespace, chooses how much is swapped and
/// plays the rounds. Lines: the setting, one a round, then the time of each kind of exchange
/// compared with that of what it runs under.
void measure_overlap(const OverlapOptions& options, std::span<const OverlapSetting> settings,
                     Communicator& comm);

}  // namespace distca::bench
