#pragma once
// The measurements of one plan by bench/plan. Not thread-safe: times are of the one thread that
// calls.

#include <string>
#include <vector>

#include "distca/base/json.h"
#include "distca/plan/plan.h"
#include "distca/plan/plan_batch_input.h"

namespace distca::bench {

/// A way to plan.
struct Variant {
  std::string name;
  PlanOptions options;
};

/// `balanced` on its two layouts, with and without split-KV and spread, at tolerance 0.02.
std::vector<Variant> balanced_variants(const std::string& scheduler);
/// Every other scheduler at its own tolerance, on its own layout.
std::vector<Variant> rival_variants(const std::string& scheduler);

/// The figures of a plan for Llama-8B on one of 8 tensor-parallel ranks, bf16: bytes of one layer,
/// forward, all servers; times, the best of the rounds (metadata: all ranks' RankExchange, which
/// serves forward and backward). Rounds 0: the plan once, no times (metadata of per-document-cp at
/// 512 servers alone is seconds). Only "refusal", and why, where the planner refuses.
Json measure(const Workload& workload, const PlanOptions& options, int rounds);

/// The denominator of all shares: the released planner at tolerance 0.05; no times.
Json measure_original(const Workload& workload);

}  // namespace distca::bench
