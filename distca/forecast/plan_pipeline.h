#pragma once
// Plans a batch for a run whose layers are divided over stages (plan/pipeline/pipeline_plan.h). The
// function depends on its arguments alone, so all ranks get the same. Any thread may call it.

#include <memory>

#include "distca/batch/batch_stream.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/program/pipeline_parts.h"

namespace distca {

/// The speeds are the stated ones (cost/speeds.h), those of the head included. Layouts of
/// nano-batches are those that one stage alone would have, so they do not depend on the number of
/// stages. `trains` is false for evaluation, which plays forward ticks alone. Throws Error(kPlan)
/// as make_plan does, and where the activations in flight on some stage exceed plan.max_memory_gib.
/// Where only what waits for weight gradients is too much, fewer may wait in this batch.
/// Throws Error(kConfig) if servers.capacity has another number of ranks. Any number of `threads`
/// makes the same plans.
std::shared_ptr<const PipelineParts> plan_pipeline(const Config& config, const Batch& batch,
                                                   const RunGrid& run, bool trains,
                                                   int threads = 1);

}  // namespace distca
