#pragma once
// The bounds that plans keep: how many tokens a worker may hold, and how much load a server may
// carry. Any thread may call the functions.

#include <cstdint>
#include <vector>

#include "distca/plan/plan.h"

namespace distca {

/// floor(total * part / whole) without overflow, for part, whole < 2^31 and a share within int64.
constexpr int64_t share_of(int64_t total, int64_t part, int64_t whole) {
  return total / whole * part + total % whole * part / whole;
}

/// Throws Error(kPlan) with the numbers if the mean number of tokens exceeds
/// cluster.max_tokens_per_worker, which every layout refuses.
void check_tokens_fit(const PlanRequest& request);

/// For layouts with uneven tokens: throws Error(kPlan) with the numbers also when a worker holds a
/// block or more above cluster.max_tokens_per_worker.
void check_workers_fit(const PlanRequest& request, const Layout& layout);

/// [servers] The share of `total` that a server should get by its capacity, times 1 + tolerance,
/// rounded down.
std::vector<int64_t> load_bounds(const PlanRequest& request, int64_t total);

}  // namespace distca
