#include "distca/plan/choose_tolerance.h"

#include <algorithm>
#include <exception>

#include "distca/base/error.h"
#include "distca/plan/scheduler.h"

namespace distca {
namespace {

constexpr int64_t kTolerancesPpm[] = {1'000'000, 500'000, 300'000, 200'000, 150'000,
                                      100'000,   50'000,  20'000,  0};

/// The plans to try, loosest first.
std::vector<PlanOptions> candidates(const PlanRequest& request) {
  const PlanOptions& asked = request.options;
  const SchedulerEntry& scheduler = find_scheduler(asked.scheduler);
  std::vector<PlanOptions> options;
  const std::vector<int64_t>& capacity = request.cluster.capacity;
  const bool all_serve =
      std::count(capacity.begin(), capacity.begin() + request.cluster.num_workers, 0) == 0;
  if (scheduler.capacities && all_serve) {
    PlanOptions nothing{
        .scheduler = "local",
        .layout = asked.layout.empty() ? std::string(scheduler.layout) : asked.layout,
        .tolerance_ppm = kTolerancesPpm[0]};
    if (asked.layout.empty() && scheduler.layout != "sequential") {
      options.push_back(nothing);
      options.back().layout = "sequential";
    }
    options.push_back(std::move(nothing));
  }
  for (const int64_t tolerance : kTolerancesPpm) {
    options.push_back(asked);
    options.back().tolerance_ppm = tolerance;
    if (!scheduler.capacities) break;  // its tasks do not depend on the tolerance
  }
  return options;
}

int64_t total_load(const Plan& plan) {
  int64_t total = 0;
  for (size_t rank = 0; rank < plan.load.size(); ++rank) total += load_of(plan, rank);
  return total;
}

/// Is it slower than `than` by more than counts?
bool slower(int64_t ps, int64_t than) { return ps - than > than / 1000 * kTiePermille; }

/// The fewest bytes of those as fast as the fastest; of equal ones the first.
size_t best_of(const std::vector<WeighedPlan>& weighed) {
  int64_t fastest = weighed.front().time.total_ps;
  for (const WeighedPlan& plan : weighed) fastest = std::min(fastest, plan.time.total_ps);
  size_t best = weighed.size();
  for (size_t i = 0; i < weighed.size(); ++i) {
    if (slower(weighed[i].time.total_ps, fastest)) continue;
    if (best == weighed.size() || weighed[i].time.bytes < weighed[best].time.bytes) best = i;
  }
  return best;
}

}  // namespace

ToleranceChoice choose_tolerance(const PlanRequest& request, const LayerTimeOptions& options) {
  ToleranceChoice choice;
  std::vector<Plan> plans;
  std::exception_ptr refusal;
  double most_even = 0;  // over share, of the plans of the scheduler asked for
  for (const PlanOptions& candidate : candidates(request)) {
    const bool asked = candidate.scheduler == request.options.scheduler;
    if (asked && most_even > 0 && most_even <= candidate.most_over_share()) {
      continue;
    }
    PlanRequest next = request;
    next.options = candidate;
    try {
      plans.push_back(make_plan(next));
    } catch (const Error&) {
      if (!refusal) refusal = std::current_exception();
      continue;
    }
    const Plan& plan = plans.back();
    const double highest = max_over_share(plan);
    if (asked) most_even = most_even > 0 ? std::min(most_even, highest) : highest;
    choice.weighed.push_back({.options = plan.options,
                              .max_over_share = highest,
                              .time = layer_time(plan, request.profile.get(), options)});
    const int64_t least =
        least_layer_ps(plan.cluster, plan.nano_batch.num_tokens(), total_load(plan), options);
    const WeighedPlan& best = choice.weighed[best_of(choice.weighed)];
    if ((asked || best.time.bytes == 0) && !slower(best.time.total_ps, least)) break;
  }
  if (plans.empty()) std::rethrow_exception(refusal);
  choice.chosen = best_of(choice.weighed);
  choice.plan = std::move(plans[choice.chosen]);
  return choice;
}

}  // namespace distca
