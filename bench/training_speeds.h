#pragma once
// How fast this machine's ranks and their wire are, measured before a contest: what
// plan.tolerance = auto weighs with. All ranks call it alike; the same values on every rank.

#include <vector>

#include "bench/step_arms.h"
#include "distca/cost/speeds.h"

namespace distca::bench {

/// From a step of `arm` for each batch, at least five.
Speeds measure_speeds(StepPlayer& player, size_t arm, const std::vector<BatchLengths>& batches,
                      Communicator& comm);

}  // namespace distca::bench
