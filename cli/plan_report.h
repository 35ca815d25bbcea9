#pragma once
// A plan explained to people and machines: what every server gets, what travels, what a looser or
// tighter tolerance or another scheduler would cost.

#include <optional>

#include "cli/planned.h"
#include "distca/plan/plan.h"

namespace distca::cli {

/// Bars per server beside plain packing of the same nano-batch, bytes, times, the exchange matrix
/// of small clusters; with a request, what other tolerances would cost.
void print_report(const Planned& planned, const PlanRequest* request);
/// One JSON object of figures.
void print_summary_json(const Planned& planned);
/// All schedulers on this nano-batch and cluster side by side; a refusal is a row, too.
void print_comparison(const PlanRequest& request, const AskedShape& asked, bool as_json);

}  // namespace distca::cli
