#pragma once
// `distca plan --config`: the plans that a training would make of one of its steps.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace distca::cli {

/// The step whose plans are asked for. The words are those of `distca train`.
struct ConfigToPlan {
  std::string config;                  // a TOML file. Empty means not given.
  std::vector<std::string> overrides;  // section.key=value
  int64_t step = 1;                    // number of the step, from 1
  int workers = 1;
  /// Lengths of documents, in place of data.prefix. Empty means not given.
  std::filesystem::path lengths;
  bool as_json = false;
  bool compare = false;  // all schedulers side by side on the step's first nano-batch
};

/// Prints the plans of a step, as the step of this number of `distca train` with the same words
/// makes them, and their hash, which is plan_hash of its metrics.jsonl. Throws Error as the
/// training does, and Error(kUsage) for a step after the last.
void print_plan_of_config(const ConfigToPlan& asked);

}  // namespace distca::cli
