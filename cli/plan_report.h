#pragma once
// Prints plans: for people a table with a row for each server or scheduler, for programs figures as
// JSON.

#include "cli/planned.h"
#include "distca/base/json.h"
#include "distca/plan/choose_tolerance.h"

namespace distca::cli {

/// Prints a row for each server, in at most 100 columns: its load compared with that of plain
/// packing, its tokens, memory, and bytes in and out.
void print_report(const Planned& planned);
/// Prints a row, or the figures as JSON, for each scheduler on this nano-batch and cluster. A
/// scheduler that refuses has a row, too.
void print_comparison(const PlanRequest& request, bool as_json);

/// All figures of a plan, as one object.
Json summary_json(const Planned& planned);
/// The plans that were weighed to choose a tolerance, as a list.
Json weighed_json(const ToleranceChoice& choice);

}  // namespace distca::cli
