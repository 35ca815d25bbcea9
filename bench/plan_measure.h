#pragma once
// What bench/plan measures of one plan. Not thread-safe: times are of the one thread that calls.

#include <string>
#include <vector>

#include "distca/plan/plan_batch_input.h"
#include "distca/plan/plan_summary.h"

namespace distca::bench {

/// A way to plan that the tables show.
struct Variant {
  std::string name;
  PlanOptions options;
};

/// `balanced` on its two layouts, with and without split-KV and spread, at tolerance 0.02.
std::vector<Variant> balanced_variants(const std::string& scheduler);
/// Every other scheduler at its own tolerance, on its own layout.
std::vector<Variant> rival_variants(const std::string& scheduler);
struct Measured {
  std::string refusal;  // of the planner; then all else is empty
  PlanSummary summary;
  int64_t bytes = 0;  // Q, K, V and O, all servers, one layer forward
  int64_t lower_bound_bytes = 0;
  size_t tasks = 0;
  size_t violations = 0;
  double plan_ms = 0;      // best of the rounds
  double metadata_ms = 0;  // likewise; all ranks' RankExchange, which serves forward and backward
};

/// Llama-8B on one of 8 tensor-parallel ranks, bf16. Rounds 0: the plan once, no times (metadata of
/// per-document-cp at 512 servers alone is seconds).
Measured measure(const Workload& workload, const PlanOptions& options, int rounds);

/// The denominator of all shares: the released planner at tolerance 0.05; no times.
Measured measure_original(const Workload& workload);

/// Of `original`: 1 where neither moves anything.
double share(int64_t bytes, int64_t original);

}  // namespace distca::bench
