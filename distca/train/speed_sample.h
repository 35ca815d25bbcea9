#pragma once
// What a played step says of its rank's speed (cost/speed_meter.h). Pure, any thread.

#include <cstdint>

#include "distca/cost/speed_meter.h"
#include "distca/runtime/executor.h"

namespace distca {

/// `times`: of this rank's step. `tokens`: at home, all nano-batches; `load`: of its tasks in all
/// nano-batches, in pairs or, with a profile, in ns. Linear work: embedding, pre, post, loss, and
/// what exchanges cost the rank itself (packing, posting, landing); waiting, sums over ranks and
/// the update are left out.
RankSample rank_sample(const OpTimes& times, int64_t tokens, int64_t load);

}  // namespace distca
