#include "bench/plan_measure.h"

#include "bench/original_plan.h"
#include "bench/timing.h"
#include "distca/base/error.h"
#include "distca/plan/exchange.h"
#include "distca/plan/lower_bound.h"
#include "distca/plan/scheduler.h"
#include "distca/plan/validate.h"

namespace distca::bench {
namespace {

constexpr int64_t kTolerancePpm = 20'000;  // the max/mean of 1.02, by pairs

PlanRequest request_of(const Workload& workload, const PlanOptions& options) {
  return {.nano_batch = workload.nano_batch,
          .cluster = Cluster::in_place(workload.ranks),
          .shape = {.num_heads = 4, .num_kv_heads = 1},
          .options = options};
}

void count(const Plan& plan, Measured& measured) {
  measured.summary = summarize(plan);
  measured.bytes = measured.summary.qkv_bytes + measured.summary.o_bytes;
  measured.lower_bound_bytes = lower_bound_bytes(plan);
  measured.tasks = plan.tasks.size();
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

Measured measure(const Workload& workload, const PlanOptions& options, int rounds) {
  const PlanRequest request = request_of(workload, options);
  Measured measured;
  Plan plan;
  try {
    plan = make_plan(request);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kPlan) throw;
    measured.refusal = error.what();
    return measured;
  }
  if (rounds > 0) {
    measured.plan_ms = best_ms(rounds, [&] { make_plan(request); });
    measured.metadata_ms = best_ms(rounds, [&] {
      const PlanIndex index(plan);
      for (int rank = 0; rank < workload.ranks; ++rank) index.exchange(rank);
    });
  }
  count(plan, measured);
  measured.violations = validate(plan, checks_of(find_scheduler(options.scheduler))).size();
  return measured;
}

Measured measure_original(const Workload& workload) {
  constexpr int64_t kItsTolerancePpm = 50'000;
  const Plan plan = original_plan(request_of(workload, {.tolerance_ppm = kItsTolerancePpm}));
  Measured measured;
  count(plan, measured);
  measured.violations = original_violations(plan).size();
  return measured;
}

double share(int64_t bytes, int64_t original) {
  if (bytes == original) return 1;
  return static_cast<double>(bytes) / static_cast<double>(original);
}

}  // namespace distca::bench
