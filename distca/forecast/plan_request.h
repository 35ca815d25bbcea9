#pragma once
// Turns a configuration into what the planner is asked, and makes the plans of a batch. The
// functions depend on their arguments alone, so all ranks get the same. Any thread may call them.
//
// A cluster's workers are servers, each of which is some ranks with tensor parallelism. Functions
// that take `cluster_workers` count these, others ranks that hold weights.

#include <cstdint>
#include <memory>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/config/config.h"
#include "distca/cost/memory_price.h"
#include "distca/cost/speeds.h"
#include "distca/plan/layer_time.h"
#include "distca/plan/plan.h"
#include "distca/program/pipeline_parts.h"

namespace distca {

/// Returns servers.capacity for a cluster of so many workers, empty if capacities are to be
/// derived. Throws Error(kConfig), too, if they are those of another number of servers.
std::vector<int64_t> checked_capacities(const Config& config, int cluster_workers);

/// The speeds of servers where nothing was measured.
Speeds stated_speeds(const Config& config, int num_servers, bool redispatched = false);

/// The options by which plan.tolerance = auto compares plans: `speeds`, with assumed_speeds where
/// nothing was measured, and plan.bandwidth_mb_per_s if it is given.
LayerTimeOptions layer_time_options(const Config& config, int cluster_workers, const Speeds& speeds,
                                    bool redispatched);

/// Returns the request to the scheduler for one nano-batch. The cluster has the workers, then the
/// servers.dedicated servers. Capacities are those that are given, else even_capacities of
/// `speeds`; without servers.reweight, or if `speeds` has no ranks, of assumed_speeds. Kept keys
/// cost memory unless exchange.keys = redispatch. A rank holds one nano-batch at a time, or two
/// under ping-pong, and each of them may use an equal share of plan.max_memory_gib. `window`: for
/// the layers that have this one of config.model.windows(). Throws Error(kConfig) if
/// servers.capacity has another number of servers.
PlanRequest plan_request(const Config& config, const NanoBatch& nano_batch, int cluster_workers,
                         const Speeds& speeds = {}, size_t window = 0);

/// The plans of a batch.
struct BatchPlans {
  /// [nano-batch x num_windows + window] The plans of a nano-batch share a layout. None in a
  /// pipeline.
  std::vector<Plan> plans;
  /// Q, K and V are dispatched again for backward, because servers do not keep them.
  bool redispatched = false;
  std::shared_ptr<const PipelineParts> pipeline = nullptr;  // the plan of several stages
  size_t num_windows = 1;  // windows of the model, each of which has plans of its own

  size_t num_nano_batches() const { return plans.size() / num_windows; }
  /// The plan of a nano-batch for the layers with this window.
  const Plan& plan(size_t nano_batch, size_t window = 0) const {
    return plans.at(nano_batch * num_windows + window);
  }
};

/// The hash of a batch's plans. Equal plans have equal hashes on every machine.
uint64_t plans_hash(const BatchPlans& plans);

/// Validates the plans of a batch. One that is wrong is a fault of ours, and a CHECK.
void check_plans(const Config& config, const BatchPlans& plans);

/// Plans all nano-batches of a batch. Where layers have several windows, the plan for the first one
/// makes the layout, and those for the others take it. With plan.tolerance = auto, choose_tolerance
/// chooses. With exchange.keys = auto, keys are kept if every rank's memory stays within
/// plan.max_memory_gib, and are dispatched again otherwise. Where that is 0,
/// Config::device_cap_bytes decides likewise, but nothing is refused for it, and keys are kept
/// where that takes less. This is decided for the whole batch, because nano-batches share the
/// buffers in which kept keys lie: a rank needs room for the most activations of any nano-batch,
/// plus the most kept keys of any nano-batch, which may be another one. Throws Error(kPlan) as
/// make_plan does. Throws it with the numbers, too, if the memory does not suffice even with
/// redispatched keys, or with keys that must be kept. A pipeline is planned by plan_pipeline.h, on
/// up to so many threads; otherwise neither they nor `trains`, which is false for evaluation, make
/// a difference.
BatchPlans plan_nano_batches(const Config& config, const Batch& batch, int num_workers,
                             const Speeds& speeds = {}, bool trains = true, int threads = 1);

/// Plans a later batch of a run likewise. Such a batch should not end the run: if exchange.keys =
/// keep and the kept keys do not fit, they are dispatched again, as with auto.
BatchPlans plan_later_batch(const Config& config, const Batch& batch, int num_workers,
                            const Speeds& speeds = {}, bool trains = true, int threads = 1);

/// Plans batches of a run before it begins, and returns the plans of the first. If a cap could
/// refuse a batch, later batches are planned too, as many as `seconds` suffice for. Throws as the
/// functions above do.
BatchPlans check_batches_fit(const Config& config, BatchStream stream, int num_workers,
                             double seconds);

}  // namespace distca
