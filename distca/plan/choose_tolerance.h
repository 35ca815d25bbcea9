#pragma once
// plan.tolerance = auto: how even the load must be, down to doing nothing, weighed against bytes
// that would not hide (layer_time.h). A pure function of recorded values: every rank chooses the
// same. Any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/plan/layer_time.h"
#include "distca/plan/plan.h"

namespace distca {

/// One plan that was tried.
struct WeighedPlan {
  std::string scheduler;  // the one asked for, or local: every query where it lives
  std::string layout;
  int64_t tolerance_ppm = 0;
  double max_over_share = 1;  // of load
  LayerTime time;
};

struct ToleranceChoice {
  Plan plan;  // options.tolerance_ppm (and scheduler, layout) as chosen
  std::vector<WeighedPlan> weighed;
  size_t chosen = 0;  // in `weighed`
};

/// Plans less than this much slower than the fastest count as equal: the fewest bytes win.
inline constexpr int64_t kTiePermille = 5;

/// Plans doing nothing and tolerances from 1 to 0, loosest first, and takes the one of the shortest
/// predicted time of a layer. Doing nothing: scheduler local on the request's layout and, where it
/// names none, on `sequential` too; not where a worker has capacity 0. Left out: tolerances that a
/// looser plan already keeps, and all after a plan that no other could beat.
/// request.options.tolerance_ppm is not looked at. Throws Error(kPlan) as make_plan does, if no
/// plan can be made. Time: at most 12 plans, each with its exchanges.
ToleranceChoice choose_tolerance(const PlanRequest& request, const LayerTimeOptions& options);

}  // namespace distca
