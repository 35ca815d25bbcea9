#pragma once
// How much of the sum of gradients is hidden under backward, on the wire of bench/overlap. Thread
// rule: one thread a rank, pinned, all ranks in the same order.

#include <span>
#include <string>

#include "bench/overlap_measure.h"

namespace distca::bench {

struct SumSetting {
  double mb_per_s = 0;  // that each direction of the wire is limited to
  bool longer = false;  // the sum takes longer than the backward that could hide it
  bool judged = false;
  std::string name() const;  // "25 MB/s sum shorter"
};

/// Measures each setting: limits the wire, chooses as many tokens as make backward as long as is
/// wanted, compared with the sum, and plays rounds: sums under backward twice, sums behind
/// backward, and messages of one byte. Lines: the setting, then one a round.
void measure_sums(const OverlapOptions& options, std::span<const SumSetting> settings,
                  Communicator& comm);

}  // namespace distca::bench
