#pragma once
// distca simulate --find-best: the best setting of a training for so many GPUs, and best against
// best with each rival.

#include <optional>
#include <string>
#include <vector>

#include "cli/asked_step.h"
#include "distca/config/config.h"
#include "distca/cost/machine.h"

namespace distca::cli {

struct FindBestArguments {
  int gpus = 0;  // 0 means not given.
  /// Names of contestants (training_setting.h), or "none". Not set means all of them.
  std::optional<std::vector<std::string>> rivals;
};

/// Finds and prints the best settings, for people or as one JSON object, and returns that object.
/// Throws as asked_step() and find_best() do, and Error(kUsage) for an unknown rival.
std::string find_best_setting(const StepArguments& asked, const Config& config,
                              const Machine& machine, const FindBestArguments& find, bool as_json);

}  // namespace distca::cli
