#pragma once
// Scheduler `greedy`: the paper's communication-aware greedy (4.2, 4.4). Any thread may call it.

#include "distca/plan/scheduler.h"

namespace distca {

/// Every query starts where it lives. A server may carry at most (1 + tolerance) times its share of
/// the pairs. Servers below this bound, the one with most room first, take shards from servers
/// above it until they are full, the shard with most pairs for each byte first. Servers that are
/// still above the bound then give single blocks to the server with least load for its capacity,
/// while that lowers the higher of the two. The bound may stay out of reach (fewer blocks than
/// servers); max_over_mean() tells.
///
/// Counts: bytes of Q, O and keys; keys of the document that the receiver already reads are free.
/// Ignores: latency, links, memory, kernel efficiency, bytes of any one server, keys that the donor
/// no longer needs.
///
/// Loads are integers, doubles are made by + - * / sqrt only, and ties go to the lowest id. Time:
/// moves x pieces on servers above the bound.
std::vector<Task> schedule_greedy(const PlanRequest& request, const Layout& layout);

}  // namespace distca
