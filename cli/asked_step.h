#pragma once
// The step of a training that `distca plan` and `distca simulate` look at, without running it.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/config/config.h"
#include "distca/plan/plan.h"

namespace distca::cli {

/// Words that say which step. Those of `distca train` have the same meaning.
struct StepArguments {
  std::string config;                  // a TOML file. Empty means not given.
  std::vector<std::string> overrides;  // section.key=value
  /// Documents in place of data.prefix. Empty means not given; at most one is.
  std::filesystem::path lengths, workload;
  int workers = 0;   // 0 means not given.
  int64_t step = 1;  // number of the step, from 1
};

/// Adds the options of these words, and returns all but the overrides.
std::vector<CLI::Option*> add_step_options(CLI::App& verb, StepArguments& asked);

/// The documents of a step, and how many workers plan them.
struct AskedStep {
  Batch batch;
  int workers = 1;    // ranks that hold weights
  std::string notes;  // lines that say what the plans do not show of the run

  /// The request for the plan of one nano-batch.
  PlanRequest request(const Config& config, const NanoBatch& nano_batch) const;
};

/// Throws Error as the training does, and Error(kUsage) for what cannot be looked at, or if there
/// are more servers or bytes than can be planned.
AskedStep asked_step(const Config& config, const StepArguments& asked);

}  // namespace distca::cli
