#include "distca/plan/plan_summary.h"

#include <algorithm>
#include <limits>

namespace distca {

PlanSummary summarize(const Plan& plan) {
  PlanSummary summary;
  summary.max_over_mean_before = max_over_mean(plan.cluster, packed_load(plan));
  summary.max_over_mean = max_over_mean(plan);
  summary.max_over_mean_time = max_over_mean(plan, &ServerLoad::time_ns);
  summary.max_over_share = max_over_share(plan);
  constexpr double kRounding = 1e-12;
  summary.tolerance_met = summary.max_over_share <= plan.options.most_over_share() + kRounding;
  for (const ServerLoad& load : plan.load) {
    summary.qkv_bytes += load.send_bytes;
    summary.o_bytes += load.o_send_bytes;
    summary.max_send_bytes = std::max(summary.max_send_bytes, load.send_bytes);
    summary.max_time_ns = std::max(summary.max_time_ns, load.time_ns);
    summary.max_memory_bytes = std::max(summary.max_memory_bytes, load.memory_bytes);
    summary.max_receive_bytes = std::max(summary.max_receive_bytes, load.receive_bytes);
  }
  summary.tokens_min = std::numeric_limits<int64_t>::max();
  for (int worker = 0; worker < plan.layout.num_workers(); ++worker) {
    const int64_t tokens = plan.layout.num_tokens(worker);
    summary.tokens_max = std::max(summary.tokens_max, tokens);
    summary.tokens_min = std::min(summary.tokens_min, tokens);
  }
  return summary;
}

}  // namespace distca
