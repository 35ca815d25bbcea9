#pragma once
// Plans of sampled nano-batches (distca/plan/sample_workloads.h) against the original's plans of
// the same ones.

#include <filesystem>
#include <string>
#include <vector>

#include "bench/plan_bars.h"
#include "bench/plan_measure.h"

namespace distca::bench {

/// One variant over all nano-batches of one source and size. Medians over those that were planned.
struct SampleRow {
  std::string source;  // "pretrain", "prolong", "both"
  int servers = 0;
  size_t variant = 0;  // its place in the variants
  size_t planned = 0;
  size_t refused = 0;
  Shares median;
  Shares worst;
  double median_of_bound = 0;  // bytes over the lower bound, where that is not 0
  double worst_max_over_mean = 0;
  size_t violations = 0;
};

/// lengths_pretrain.json and lengths_prolong.json in `folder`, `count` nano-batches of each and of
/// each size: 8, 64 and 512 servers of 131,072 tokens.
std::vector<SampleRow> measure_sample(const std::filesystem::path& folder, int count, uint64_t seed,
                                      const std::vector<Variant>& variants);

}  // namespace distca::bench
