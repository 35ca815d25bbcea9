#pragma once
// Predicts how long a layer of one nano-batch takes under a plan, and how much of this time its
// exchanges add. plan.tolerance = auto weighs plans by it (choose_tolerance.h).
//
//   const LayerTime time =
//       layer_time(plan, /*profile=*/nullptr, {.speeds = speeds, .layers = model.num_layers});
//
// The prediction is a pure function of recorded values. Any thread may call it.

#include <cstdint>
#include <memory>

#include "distca/cost/speeds.h"
#include "distca/plan/plan.h"

namespace distca {

/// The compute under which exchanges run: the planner's view of an overlap mode
/// (program/overlap.h).
enum class OverlapModel : uint8_t {
  kNothing,    // mode none waits for every exchange
  kHomeTasks,  // mode within runs each exchange under half of the tasks at home
  /// Ping-pong runs each exchange under one operation of the other nano-batch, which is assumed to
  /// be like this one.
  kOtherNanoBatch,
};

struct LayerTimeOptions {
  /// Speeds of all servers. Only the bandwidth may be unknown; then that of the cluster's links
  /// counts.
  Speeds speeds;
  OverlapModel overlap_model = OverlapModel::kOtherNanoBatch;
  int64_t layers = 1;           // number of layers whose time `speeds` gives
  bool redispatched = false;    // Q, K, V travel again for backward
  bool wide_gradients = false;  // dQ, dK, dV travel in fp32 though they are computed in less
};

/// The time of forward and backward together.
struct LayerTime {
  int64_t total_ps = 0;
  int64_t exposed_ps = 0;  // the part that would be gone if nothing had to travel
  int64_t bytes = 0;       // that all ranks send, with LSE and delta
};

/// Predicts the time of a layer.
/// Counts: linear work by tokens and attention by load, at the ranks' speeds; a third of the one
/// and 2/7 of the other is forward. For each of a rank's four exchanges, the longer of sending and
/// receiving, with a latency for each message. Under none and within, if anything travels, linear
/// work takes as long as on the slowest rank, and so does attention. Otherwise both together take
/// as long as on the slowest rank.
/// Ignores: packing, other nano-batches than this one, memory, and that a rank waits only for ranks
/// with which it exchanges.
/// Time: that of PlanIndex and all its exchanges.
LayerTime layer_time(const Plan& plan, const AttentionProfile* profile,
                     const LayerTimeOptions& options);

/// A time that no plan of this nano-batch can go below, to within a block of tokens: the load is
/// spread over the servers with a capacity so that all finish together, and no exchange adds any
/// time. `load` is that of all servers.
int64_t least_layer_ps(const Cluster& cluster, int64_t tokens, int64_t load,
                       const LayerTimeOptions& options);

}  // namespace distca
