#pragma once
// `distca plan --program --pipeline P`: the ticks of a pipeline's step, and what one rank does in
// it.

#include <string_view>

#include "cli/plan_arguments.h"
#include "distca/program/pipeline_parts.h"

namespace distca::cli {

/// Prints a row for each tick of a pipeline whose ticks are planned together, forward and backward.
void print_ticks(const PipelineParts& parts, std::string_view overlap);

/// Plans all ticks of `micro_batches` micro-batches over `pipeline` stages, builds the programs of
/// all ranks and checks them together. Prints a row for each tick, then the program of one rank.
/// Throws Error(kUsage, kData or kPlan) for what cannot be planned or shown.
void print_pipeline(const PlanArguments& arguments);

}  // namespace distca::cli
