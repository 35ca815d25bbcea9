#pragma once
// The greedy of key_sub_ranges.cc: servers above their bound give rectangles of queries x keys to
// servers below theirs. Any thread, one search a thread.

#include "distca/plan/assignment.h"

namespace distca {

/// Moves until no server is above its bound or no move helps.
void give_rectangles(Assignment& state, const PlanRequest& request);

/// [servers] the most load each should have: its share of `state`'s, and the tolerance.
std::vector<int64_t> load_bounds(const Assignment& state, const PlanRequest& request);

}  // namespace distca
