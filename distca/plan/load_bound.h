#pragma once
// How much load each server may carry. Any thread may call the function.

#include <cstdint>
#include <vector>

#include "distca/plan/plan.h"

namespace distca {

/// [servers] The share of `total` that a server should get by its capacity, times 1 + tolerance,
/// rounded down.
std::vector<int64_t> load_bounds(const PlanRequest& request, int64_t total);

}  // namespace distca
