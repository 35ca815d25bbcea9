#pragma once
// Counts what a plan's layout and tasks cost. Schedulers only decide; the figures of a plan are
// counted here, from its layout and tasks alone. Any thread may call the functions.

#include <vector>

#include "distca/cost/task_price.h"
#include "distca/plan/plan.h"

namespace distca {

/// [max(num_workers, num_servers)] The load of every rank of a plan whose layout and tasks are
/// there. The layout must hold every token once. Without a profile, time_ns is 0.
/// Counts: pairs that the mask allows; Q and O of every query token that is computed away from
/// home; K and V of every key token, once for each server that reads it and does not hold it.
/// Ignores: LSE, message headers, backward.
/// Time: O(n log n) in tasks, segments and transfers.
std::vector<ServerLoad> account(const Plan& plan, const AttentionProfile* profile = nullptr);

/// The cost of homes, by which others are compared with documents in their order.
struct HomeCost {
  int64_t bytes = 0;   // that travel
  double load = 0;     // the largest of a server, over its share
  int64_t tokens = 0;  // the most of a worker
  /// Returns true if it is in every respect.
  bool as_good_as(const HomeCost& other) const {
    return bytes <= other.bytes && load <= other.load && tokens <= other.tokens;
  }
};

/// The load of a nano-batch's documents, each as one task.
int64_t load_of(const NanoBatch& nano_batch, const TaskPrice& price);

}  // namespace distca
