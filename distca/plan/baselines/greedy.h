#pragma once
// Scheduler `greedy`: the paper's communication-aware greedy (4.2, 4.4). Any thread.

#include "distca/plan/scheduler.h"

namespace distca {

/// Every query starts where it lives. A server may carry at most (1 + tolerance) times its share of
/// the pairs; receivers, the one with most room first, take from servers above that bound the shard
/// with most pairs per byte, until they are full. What is still above the bound then sheds single
/// blocks to whoever has most room, while that lowers the higher of the two. The bound may stay out
/// of reach (fewer blocks than servers): max_over_mean() tells.
///
/// Counts: Q, O and key bytes; keys of the document that the receiver already reads are free.
/// Ignores: latency, links, memory, kernel efficiency, bytes of any one server, keys that the donor
/// no longer needs.
///
/// Integers for loads, doubles by + - * / sqrt only, ties by the lowest id. Time: moves x pieces on
/// servers above the bound.
std::vector<Task> schedule_greedy(const PlanRequest& request, const Layout& layout);

}  // namespace distca
