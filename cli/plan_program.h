#pragma once
// Prints the program of a rank for people (docs/program.md).

#include "cli/plan_arguments.h"

namespace distca::cli {

/// Prints the program that the arguments ask for. Throws Error(kUsage or kPlan) if it cannot be
/// shown: there is no such rank, there are no layers, or there are too many messages to check.
void print_program_of(const PlanArguments& arguments);

}  // namespace distca::cli
