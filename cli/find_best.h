#pragma once
// distca simulate --find-best: the best setting of a training for so many GPUs, and best against
// best with each rival.

#include "cli/asked_step.h"
#include "distca/config/config.h"
#include "distca/cost/machine.h"

namespace distca::cli {

/// Finds and prints the best settings, for people or as one JSON object. Throws as asked_step() and
/// find_best() do.
void find_best_setting(const StepArguments& asked, const Config& config, const Machine& machine,
                       int gpus, bool json);

}  // namespace distca::cli
