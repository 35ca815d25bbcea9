#pragma once
// Derives a sample of a rank's speed from the times of its step (cost/speed_meter.h). A pure
// function; any thread may call it.

#include <cstdint>

#include "distca/cost/speed_meter.h"
#include "distca/runtime/executor.h"

namespace distca {

/// `times` are those of this rank's step. `tokens` counts the rank's own tokens of all
/// nano-batches. `load` is that of its tasks in all nano-batches, in pairs or, with a profile, in
/// ns.
///
/// Linear and attention time together are all the time in which this rank was busy before gradients
/// are summed. What exchanges cost the rank itself (packing, issuing, putting results in place)
/// counts as linear, because a slow rank is slow at it too. The sample has it apart, too, and how
/// long the rank waited for messages, which counts as neither. The sum over ranks and the update do
/// not count, because no division of core attention among servers changes how evenly ranks finish
/// them.
RankSample rank_sample(const OpTimes& times, int64_t tokens, int64_t load);

}  // namespace distca
