#pragma once
// The loss of a model over batches from which it does not learn: during a training, or of weights
// that lie on disk.
//
//     const auto next = [&] { return plans.next(ProgramRequest::Kind::kEvaluate, speeds); };
//     const auto losses = evaluate(step, num_batches, next, comm);
//
//     const PositionLosses losses = evaluate_stored(config, checkpoint, comm, progress);
//
// Thread rule: one thread of each rank; all ranks call it together.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>

#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/report/position_losses.h"
#include "distca/train/plan_ahead.h"
#include "distca/train/step.h"

namespace distca {

/// Plays the forward passes of so many planned batches, which `next` gives one after another, and
/// adds up what all ranks found. Returns nothing if `next` gives nothing: a batch cannot be had.
std::optional<PositionLosses> evaluate(Step& step, size_t num_batches,
                                       const std::function<std::optional<PlannedBatch>()>& next,
                                       Communicator& comm);

/// The losses over every document of data.prefix once (evaluation_batches), computed in
/// model.dtype. `checkpoint` is the folder that has the weights; if it is empty, they are those of
/// the folder that model.from names. The last servers.dedicated ranks hold no weights and only
/// compute attention. `progress`, which rank 0 calls, gets the share of the nano-batches that are
/// done. Throws Error on all ranks if one of them cannot read its weights or its documents, or if
/// ranks differ in their configuration.
PositionLosses evaluate_stored(const Config& config, const std::filesystem::path& checkpoint,
                               Communicator& comm,
                               const std::function<void(double share)>& progress);

}  // namespace distca
