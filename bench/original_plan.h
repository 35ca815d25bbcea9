#pragma once
// The released planner of the paper (distca/planner/planner.py of its code), to have its bytes for
// batches that no table lists. It cuts documents at any token, so its plans are for counting only:
// nothing runs them. Any thread.

#include <string>
#include <vector>

#include "distca/plan/plan.h"

namespace distca::bench {

inline constexpr const char* kOriginal = "greedy-original";  // the scheduler that its plans name

/// The plan for servers that are workers of equal capacity, of options.tolerance_ppm.
///
/// Documents fill the workers in order. An item is a document or a chunk of one: a head and the
/// tail that mirrors it. Receivers, the largest deficit first, take from servers above their share
/// while they lack more than tolerance x share: the item with the fewest elements per pair gives
/// its middle-most pairs of (head, tail) rows, as many as donor, receiver and item allow, cut at
/// any token. The donors' load is bound by nothing, so max/mean may exceed 1 + tolerance.
///
/// Counts, to choose: Q of the head rows and the keys of the whole document, wherever they are, as
/// the original does. Ignores: O, the Q of the tail rows, keys already there, caps, windows, nodes.
///
/// Where the original needs even lengths, rows are counted one by one. Doubles by + - * / only,
/// ties by the item that came first. Time: moves x items.
Plan original_plan(const PlanRequest& request);

/// All violations that the validator finds in such a plan, except those for where it cuts
/// documents.
std::vector<std::string> original_violations(const Plan& plan);

}  // namespace distca::bench
