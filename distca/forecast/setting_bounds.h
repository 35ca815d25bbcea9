#pragma once
// Bounds of what a step of a configuration takes, in time and in memory, without plans or by plans
// alone: by them settings are ruled out at no cost or at little (find_best.h).
//
//     const BatchWork work = batch_work(config, batch);
//     if (least_step_s(config, num_workers, machine, work) > best_s) continue;  // cannot be best
//
// Any thread may call the functions.

#include <cstdint>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/config/config.h"
#include "distca/cost/machine.h"
#include "distca/forecast/memory.h"
#include "distca/forecast/plan_figures.h"

namespace distca {

/// The work of a step, however it is divided.
struct BatchWork {
  int64_t tokens = 0;
  std::vector<int64_t> pairs;  // [config.model.windows()] (query, key) pairs of a layer
};
BatchWork batch_work(const Config& config, const Batch& batch);

/// Seconds that no step of the configuration stays below: what all ranks compute, over their
/// number; in a pipeline also what a stage computes, and its wait for the first nano-batch to come
/// and for the last one's gradients to reach the first stage. Counts: matrix products with what is
/// recomputed, and core attention at the highest rate of the machine's profile. Ignores: messages,
/// uneven work, the optimizer. The configuration has no dedicated servers.
double least_step_s(const Config& config, int num_workers, const Machine& machine,
                    const BatchWork& work);

/// Likewise with the step's plans, by their figures (plan_figures.h): what the rank computes that
/// has most. 0 in a pipeline that pools attention, where passes are planned apart.
double least_busiest_s(const Config& config, int num_workers, const Machine& machine,
                       const PlanFigures& figures, const std::vector<RankSample>& work);

/// Bytes that some rank holds at least, on the stage where that is most: what stands, and the
/// activations of the nano-batches that are in flight together. It is never above the peak that
/// forecast/memory_peak.h predicts.
MemoryParts least_peak(const Config& config, int num_workers);

/// Seconds of a rank that full recomputation adds to a step, in the mean.
double recomputed_s(const Config& config, int num_workers, const Machine& machine,
                    const BatchWork& work);

}  // namespace distca
