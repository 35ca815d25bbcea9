#pragma once
// How long a layer of one nano-batch would take under a plan, and how much of that its exchanges
// show: what plan.tolerance = auto weighs (choose_tolerance.h). A pure function of recorded values;
// any thread.

#include <cstdint>
#include <memory>

#include "distca/cost/speeds.h"
#include "distca/plan/plan.h"

namespace distca {

/// What exchanges run under: the planner's view of a schedule (program/overlap.h).
enum class Hiding : uint8_t {
  kNothing,         // blocking: all is waited for
  kHomeTasks,       // overlap: half of the tasks at home each
  kOtherNanoBatch,  // ping-pong: each under one operation of the other nano-batch, which is taken
                    // to be like this one
};
/// What of a rank's work is evened under it (cost/speeds.h).
Evenness evenness_of(Hiding hiding);

struct LayerTimeOptions {
  Speeds speeds;  // of all servers, nothing unknown but the bandwidth: then the cluster's links
  Hiding hiding = Hiding::kOtherNanoBatch;
  int64_t layers = 1;           // that the speeds are of
  bool redispatched = false;    // Q, K, V travel again for backward
  bool wide_gradients = false;  // dQ, dK, dV travel in fp32 where they are computed in less
};

/// Forward and backward.
struct LayerTime {
  int64_t total_ps = 0;
  int64_t exposed_ps = 0;  // what of it would be gone if nothing had to travel
  int64_t bytes = 0;       // that all ranks send, LSE and delta included
};

/// Counts: linear work by tokens and attention by load, at the ranks' speeds, a third and 2 / 7 of
/// them in forward; of each rank's four exchanges the longer of sending and receiving, a latency a
/// message. Under blocking and overlap linear work and attention are as long as the longest of any
/// rank each, if anything travels; else, and under ping-pong, as the longest of both together.
/// Ignores: packing, other nano-batches than this one, memory, that a rank waits for the slowest
/// that it exchanges with and no other.
/// Time: that of PlanIndex and all its exchanges.
LayerTime layer_time(const Plan& plan, const AttentionProfile* profile,
                     const LayerTimeOptions& options);

/// What no plan of this nano-batch can fall below, to within a block of tokens: load spread over
/// the servers that have a capacity so that all finish together, nothing exposed. `load`: of all
/// servers.
int64_t least_layer_ps(const Cluster& cluster, int64_t tokens, int64_t load,
                       const LayerTimeOptions& options);

}  // namespace distca
