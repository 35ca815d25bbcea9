#pragma once
// The program of a rank, for people (docs/program.md).

#include "cli/plan_arguments.h"

namespace distca::cli {

/// Throws Error(kUsage or kPlan) for what cannot be shown: no such rank, no layers, more messages
/// than are worth checking.
void print_program_of(const PlanArguments& arguments);

}  // namespace distca::cli
