#pragma once
// A plan explained to people and machines: what every server gets, what travels, what a looser or
// tighter tolerance or another scheduler would cost.

#include <optional>

#include "distca/plan/plan.h"

namespace distca::cli {

/// A valid plan and what was measured.
struct Planned {
  Plan plan;
  std::optional<double> plan_seconds;  // none of a plan from a file
  double metadata_seconds = 0;         // all ranks, forward and backward
};

/// Plans, validates and builds all ranks' exchanges. Throws Error(kPlan) as make_plan does.
Planned make_and_check(const PlanRequest& request);
double metadata_seconds(const Plan& plan);

/// Bars per server beside plain packing of the same nano-batch, bytes, times, the exchange matrix
/// of small clusters; with a request, what other tolerances would cost.
void print_report(const Planned& planned, const PlanRequest* request);
/// One JSON object of figures.
void print_summary_json(const Planned& planned);
/// All schedulers on this nano-batch and cluster side by side; a refusal is a row, too.
void print_comparison(const PlanRequest& request, bool as_json);

}  // namespace distca::cli
