#pragma once
// Prints plans and programs: for people tables, with a row for each server, scheduler, tick or
// operation, for programs figures as JSON.

#include <string_view>

#include "cli/plan_file.h"
#include "distca/base/json.h"
#include "distca/config/config.h"
#include "distca/forecast/pipeline_orders.h"
#include "distca/forecast/plan_request.h"
#include "distca/plan/choose_tolerance.h"
#include "distca/program/pipeline_parts.h"

namespace distca::cli {

/// Prints a row for each server, in at most 100 columns: its load compared with that of plain
/// packing, its tokens, memory, and bytes in and out.
void print_report(const Planned& planned);
/// Prints a row, or the figures as JSON, for each scheduler on this nano-batch and cluster. A
/// scheduler that refuses has a row, too.
void print_comparison(const PlanRequest& request, bool as_json);
/// Prints a row, or the figures as JSON, for each order in which a pipeline may be played.
void print_orders(const std::vector<OrderForecast>& orders, bool as_json);
/// Prints a row for each tick of a pipeline whose ticks are planned together, forward and backward.
void print_ticks(const PipelineParts& parts, std::string_view overlap);
/// Builds the programs of all ranks for the training step that has these plans, checks them
/// together and prints that of one rank. Throws Error(kUsage) if there is no such rank, or if the
/// programs are too large to be checked together.
void print_program_of(const Config& config, const BatchPlans& plans, int num_workers, int rank);

/// All figures of a plan, as one object.
Json summary_json(const Planned& planned);
/// The plans that were weighed to choose a tolerance, as a list.
Json weighed_json(const ToleranceChoice& choice);

}  // namespace distca::cli
