#pragma once
// What a played step says of its rank's speed (cost/speed_meter.h). Pure, any thread.

#include <cstdint>

#include "distca/cost/speed_meter.h"
#include "distca/runtime/executor.h"

namespace distca {

/// `times`: of this rank's step. `tokens`: at home, all nano-batches; `load`: of its tasks in all
/// nano-batches, in pairs or, with a profile, in ns. Linear and attention together are all the time
/// in which this rank was busy before gradients are summed: what exchanges cost the rank itself
/// (packing, posting, landing) is linear, for a slow rank is slow at it too; waiting is neither.
/// The sum over ranks and the update are left out: no split of core attention makes them any
/// evener.
RankSample rank_sample(const OpTimes& times, int64_t tokens, int64_t load);

}  // namespace distca
