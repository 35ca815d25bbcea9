#pragma once
// The loss of a model over batches from which it does not learn.
//
//     const auto next = [&] { return plans.next(ProgramRequest::Kind::kEvaluate, speeds); };
//     const auto losses = evaluate(step, num_batches, next, comm);
//
// Thread rule: one thread of each rank; all ranks call it together.

#include <cstddef>
#include <functional>
#include <optional>

#include "distca/comm/communicator.h"
#include "distca/report/position_losses.h"
#include "distca/train/plan_ahead.h"
#include "distca/train/step.h"

namespace distca {

/// Plays the forward passes of so many planned batches, which `next` gives one after another, and
/// adds up what all ranks found. Returns nothing if `next` gives nothing: a batch cannot be had.
std::optional<PositionLosses> evaluate(Step& step, size_t num_batches,
                                       const std::function<std::optional<PlannedBatch>()>& next,
                                       Communicator& comm);

}  // namespace distca
