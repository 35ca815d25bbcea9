#pragma once
// From a configuration to what the planner is asked, and the plans of a batch: pure functions of
// their arguments, the same on every rank. Any thread.

#include <cstdint>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/cost/memory_price.h"
#include "distca/cost/speeds.h"
#include "distca/plan/layer_time.h"
#include "distca/plan/plan.h"
#include "distca/train/config.h"

namespace distca {

/// servers.capacity as numbers; empty: to be derived. Throws Error(kConfig).
std::vector<int64_t> given_capacities(const Config::Servers& servers);

/// Do times measured while training enter the plans? Never under train.deterministic.
bool measures_speeds(const Config& config);

/// What plan.tolerance = auto weighs with: `speeds`, stated_speeds where nothing was measured, and
/// plan.bandwidth_mb_per_s where it is given.
LayerTimeOptions layer_time_options(const Config& config, int num_workers, const Speeds& speeds,
                                    bool redispatched);

/// What the scheduler is asked for one nano-batch: workers, then servers.dedicated servers;
/// capacities as given, else even_capacities of `speeds` (no ranks, or without servers.reweight:
/// stated_speeds). Kept keys cost
/// memory unless exchange.keys = redispatch; each of the nano-batches that a rank holds at a time
/// has its share of plan.max_memory_gib. Throws Error(kConfig) for capacities of another number of
/// servers.
PlanRequest plan_request(const Config& config, const NanoBatch& nano_batch, int num_workers,
                         const Speeds& speeds = {});

struct BatchPlan {
  std::vector<Plan> plans;    // [nano-batches]
  bool redispatched = false;  // Q, K, V travel again for backward: servers do not keep them
};

/// plan.tolerance = auto: as choose_tolerance says. exchange.keys = auto: kept where every rank's
/// memory stays within plan.max_memory_gib, else redispatched; one or the other for all
/// nano-batches of the batch, for kept keys lie in buffers that nano-batches share: a rank holds
/// the most activations of any of them and the most kept keys of any, be it another one's. Throws
/// Error(kPlan) as make_plan, and where even redispatched keys, or those that are to be kept, do
/// not fit, with the numbers.
BatchPlan plan_nano_batches(const Config& config, const Batch& batch, int num_workers,
                            const Speeds& speeds = {});

/// The same for a run's later batches, which are not worth its end: exchange.keys = keep that do
/// not fit travel again, as auto has it.
BatchPlan plan_later_batch(const Config& config, const Batch& batch, int num_workers,
                           const Speeds& speeds = {});

/// Plans the run's batches before it begins, the first as plan_nano_batches and, where caps could
/// refuse one, as many others as `seconds` suffice for; returns the first one's. Throws as those
/// do.
BatchPlan check_batches_fit(const Config& config, BatchStream stream, int num_workers,
                            double seconds);

}  // namespace distca
