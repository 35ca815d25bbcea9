#pragma once
// Figures of a batch's plans: load, tokens and predicted time, for metrics.jsonl and for speeds.
// Any thread may call the functions.

#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/cost/speed_meter.h"
#include "distca/train/config.h"
#include "distca/train/metrics.h"
#include "distca/train/plan_request.h"

namespace distca {

/// Fills the fields of `figures` that follow from plans, and `work` [ranks], without times.
/// Without a pipeline, loads are those of one layer, summed over nano-batches; where windows differ
/// by layer, those of the mean of all layers, rounded down for each window. In a pipeline, ranks
/// have unequal layers, so loads are those of all layer steps of forward; before balancing, each
/// stage computes its own attention.
void add_plan_figures(const Config& config, const Batch& batch, const BatchPlan& plans,
                      int num_workers, PlanFigures* figures, std::vector<RankSample>* work);

}  // namespace distca
