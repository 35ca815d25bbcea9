#include "bench/plan_measure.h"

#include "bench/original_plan.h"
#include "bench/timing.h"
#include "distca/base/error.h"
#include "distca/plan/exchange.h"
#include "distca/plan/lower_bound.h"
#include "distca/plan/plan_summary.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"

namespace distca::bench {
namespace {

constexpr int64_t kTolerancePpm = 20'000;  // max/mean of 1.02, by pairs, as in docs/planner.md

PlanRequest request_of(const Workload& workload, const PlanOptions& options) {
  return {.nano_batch = workload.nano_batch,
          .cluster = Cluster::in_place(workload.ranks),
          .shape = {.num_heads = 4, .num_kv_heads = 1},
          .options = options};
}

Json figures_of(const Plan& plan, size_t violations) {
  const PlanSummary summary = summarize(plan);
  return {{"max_over_mean_before", summary.max_over_mean_before},
          {"max_over_mean", summary.max_over_mean},
          {"qkv_bytes", summary.qkv_bytes},
          {"o_bytes", summary.o_bytes},
          {"max_send_bytes", summary.max_send_bytes},
          {"max_receive_bytes", summary.max_receive_bytes},
          {"tokens_max", summary.tokens_max},
          {"tokens_min", summary.tokens_min},
          {"lower_bound_bytes", lower_bound_bytes(plan)},
          {"tasks", plan.tasks.size()},
          {"violations", violations}};
}

}  // namespace

std::vector<Variant> balanced_variants(const std::string& scheduler) {
  std::vector<Variant> variants;
  const auto add = [&](const char* name, const char* layout, bool split_kv, bool spread) {
    variants.push_back({name,
                        {.scheduler = scheduler,
                         .layout = layout,
                         .tolerance_ppm = kTolerancePpm,
                         .split_kv = split_kv,
                         .spread = spread}});
  };
  add("sequential, whole context", "sequential", false, false);
  add("sequential, split-KV", "sequential", true, false);
  add("own layout, whole context", "balanced", false, false);
  add("own layout, split-KV", "balanced", true, false);
  add("own layout, spread", "balanced", true, true);
  return variants;
}

std::vector<Variant> rival_variants(const std::string& scheduler) {
  std::vector<Variant> variants;
  for (const SchedulerEntry& entry : schedulers()) {
    const std::string name(entry.name);
    if (name != scheduler) variants.push_back({name, {.scheduler = name}});
  }
  return variants;
}

Json measure(const Workload& workload, const PlanOptions& options, int rounds) {
  const PlanRequest request = request_of(workload, options);
  Plan plan;
  try {
    plan = make_plan(request);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kPlan) throw;
    return {{"refusal", error.what()}};
  }
  Json measured =
      figures_of(plan, validate(plan, checks_of(find_scheduler(options.scheduler))).size());
  if (rounds == 0) return measured;
  measured["plan_ms"] = best_ms(rounds, [&] { make_plan(request); });
  measured["metadata_ms"] = best_ms(rounds, [&] {
    const PlanIndex index(plan);
    for (int rank = 0; rank < workload.ranks; ++rank) index.exchange(rank);
  });
  return measured;
}

Json measure_original(const Workload& workload) {
  constexpr int64_t kItsTolerancePpm = 50'000;
  const Plan plan = original_plan(request_of(workload, {.tolerance_ppm = kItsTolerancePpm}));
  return figures_of(plan, original_violations(plan).size());
}

}  // namespace distca::bench
