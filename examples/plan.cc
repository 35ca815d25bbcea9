#include <fmt/format.h>

#include "distca/api/planner.h"

int main() {
  const distca::api::BatchPlan plan = distca::api::plan_batch({
      .cu_seqlens = {0, 6000, 6500, 7000, 7900, 8192},  // five documents
      .num_ranks = 4,
      .shape = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128},
  });
  for (int rank = 0; rank < plan.num_ranks(); ++rank) {
    for (const distca::Range& tokens : plan.tokens()[rank])
      fmt::print("rank {} holds tokens {} to {}\n", rank, tokens.begin, tokens.end - 1);
  }
  fmt::print("busiest rank / mean: {:.3f}\nplan {}\n", plan.max_over_mean(), plan.hash());
}
