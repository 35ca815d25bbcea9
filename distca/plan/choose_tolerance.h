#pragma once
// Chooses how even the load must be (plan.tolerance = auto). An evener load costs more bytes, and
// bytes that are not hidden under compute cost time (layer_time.h), so both are weighed against
// each other. Doing nothing is one of the choices.
//
//   const ToleranceChoice choice = choose_tolerance(
//       request, {.speeds = assumed_speeds(model, num_servers), .layers = model.num_layers});
//   const WeighedPlan& best = choice.weighed[choice.chosen];  // choice.plan in figures
//
// The choice is a pure function of recorded values, so every rank makes the same one. Any thread
// may call it.

#include <cstdint>
#include <vector>

#include "distca/plan/layer_time.h"
#include "distca/plan/plan.h"

namespace distca {

/// The figures of one plan that was tried.
struct WeighedPlan {
  PlanOptions options;        // the scheduler is the one asked for, or local (do nothing)
  double max_over_share = 1;  // the busiest server's load over its share
  LayerTime time;
};

struct ToleranceChoice {
  /// Its options.tolerance_ppm, scheduler and layout are those that were chosen.
  Plan plan;
  std::vector<WeighedPlan> weighed;  // in the order in which they were tried
  size_t chosen = 0;                 // index in `weighed`
};

/// Plans that are slower than the fastest by at most this much, in thousandths, count as equally
/// fast. The one with the fewest bytes wins.
inline constexpr int64_t kTiePermille = 5;

/// Makes plans that do nothing and plans for tolerances from 1 to 0, loosest first, and takes the
/// one with the shortest predicted time of a layer. Doing nothing means scheduler local on the
/// request's layout or, where it names none, on the scheduler's own layout and on `sequential`. It
/// is not tried where a worker has capacity 0. Tolerances that a looser plan already keeps are left
/// out, and so is everything after a plan that no other could beat. request.options.tolerance_ppm
/// is not read.
/// Throws Error(kPlan) as make_plan does if no plan can be made. Time: that of at most 11 plans
/// with all their exchanges.
ToleranceChoice choose_tolerance(const PlanRequest& request, const LayerTimeOptions& options);

}  // namespace distca
