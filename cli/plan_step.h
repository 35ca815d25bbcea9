#pragma once
// `distca plan` shows the plans that a training would make of one of its steps, or those of a file.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/asked_step.h"

namespace distca::cli {

/// The words of the verb.
struct PlanArguments : StepArguments {
  std::filesystem::path plan;  // a file to be shown instead of a step. Empty means not given.
  std::filesystem::path out;   // where the plans go. Empty means nowhere.
  std::optional<int> program;  // the rank whose program is printed instead of plans
  bool compare = false, json = false, summary_json = false;
};

/// Prints the plans of a step, as the step of this number of `distca train` with the same words
/// makes them, and their hash, which is plan_hash of its metrics.jsonl. Prints all schedulers or a
/// rank's program instead, if those are asked for. Throws Error as the training does, and
/// Error(kUsage) for what cannot be shown.
void print_step(const PlanArguments& asked);

/// Checks the plans of a file and prints them. Throws Error(kPlan) if they are not valid.
void print_plan_file(const PlanArguments& asked);

}  // namespace distca::cli
