#pragma once
// A plan explained: a row a server or a row a scheduler for people, figures for machines.

#include "cli/planned.h"
#include "distca/base/json.h"
#include "distca/plan/choose_tolerance.h"

namespace distca::cli {

/// A row a server, in at most 100 columns: load beside that of plain packing, tokens, memory, bytes
/// in and out.
void print_report(const Planned& planned);
/// All schedulers on this nano-batch and cluster, a row each, or their figures; a refusal is one,
/// too.
void print_comparison(const PlanRequest& request, bool as_json);

/// What is known of a plan, as one object.
Json summary_json(const Planned& planned);
/// What was weighed for a tolerance, as a list.
Json weighed_json(const ToleranceChoice& choice);

}  // namespace distca::cli
