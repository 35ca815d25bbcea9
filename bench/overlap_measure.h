#pragma once
// Measures the settings of bench/overlap, on each of two ranks alike; rank 0 writes the lines.
// Thread rule: one thread a rank, pinned, all ranks in the same order.

#include <span>

#include "bench/overlap_settings.h"
#include "distca/comm/communicator.h"
#include "distca/model/llama.h"

namespace distca::bench {

constexpr int kNanoBatches = 2;  // of a step

struct OverlapOptions {
  LlamaConfig model;
  int rounds = 15;
  int shown_rounds = 5;  // of settings and arms that are not judged
};

/// Of each setting: limits the wire of this rank's namespace, chooses how much is swapped and
/// measures. Lines: the setting, one a round, then what each kind of exchange takes beside what it
/// runs under.
void measure_overlap(const OverlapOptions& options, std::span<const OverlapSetting> settings,
                     Communicator& comm);

}  // namespace distca::bench
