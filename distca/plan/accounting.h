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

/// The load of a nano-batch's documents, each as one task.
int64_t load_of(const NanoBatch& nano_batch, const TaskPrice& price);

}  // namespace distca
