#pragma once
// By how much the ranks of a pipeline are predicted to wait for each other. Any thread may call the
// function.

#include <cstdint>
#include <vector>

#include "distca/program/pipeline_parts.h"

namespace distca {

/// The predicted length of all ticks over the mean work of a rank: 1 is a step in which nobody
/// waits, so it counts what is uneven as well as the bubble.
struct PipelineImbalance {
  double before = 1;  // where each stage computes its own core attention in the same ticks
  double after = 1;   // under the plans
};

/// `packed` [nano-batch][replica]: pairs of a layer under plain packing. With Evenness::kWhole, and
/// under 1f1b, a tick is as long as the most work of a rank; otherwise as the most linear work and
/// the most attention, since ranks meet between them. Ignores: exchanges, and under 1f1b that
/// stages may be up to a tick apart and that replicas of a stage meet.
PipelineImbalance pipeline_imbalance(const PipelineParts& parts,
                                     const std::vector<std::vector<int64_t>>& packed);

}  // namespace distca
