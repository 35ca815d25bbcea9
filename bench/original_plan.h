#pragma once
// The released planner of the paper (distca/planner/planner.py of its code), to have its bytes for
// batches that no table lists. It cuts documents at any token, so its plans are for counting only:
// nothing runs them. Any thread.

#include <string>
#include <vector>

#include "distca/plan/plan.h"

namespace distca::bench {

inline constexpr const char* kOriginal = "greedy-original";  // the scheduler that makes them

/// The plan for servers that are workers of equal capacity, of options.tolerance_ppm: scheduler
/// `greedy-original` (plan/baselines/baselines.h).
Plan original_plan(const PlanRequest& request);

/// All violations that the validator finds in such a plan, except those for where it cuts
/// documents.
std::vector<std::string> original_violations(const Plan& plan);

}  // namespace distca::bench
