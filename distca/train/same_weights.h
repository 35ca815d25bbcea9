#pragma once
// Checks that ranks hold the same weights where they should: the replicas of each stage; the first
// and the last stage, those of a tied embedding; ranks that share layers by tensor parallelism,
// those that it does not divide. Thread rule: as the communicator's.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/config/run_grid.h"
#include "distca/model/llama_config.h"

namespace at {
class Tensor;
}

namespace distca {

/// Ranks whose weights differ in any bit from those that they should equal.
struct OtherRanks {
  std::vector<int> replicas;  // ranks that differ from the first that holds the same weights
  std::vector<int> copies;    // ranks of the last stage whose tied embedding differs from the first
  /// Ranks whose undivided weights differ from those of another rank of their server, and that one.
  std::vector<std::pair<int, int>> partners;
  bool empty() const { return replicas.empty() && copies.empty() && partners.empty(); }
};

/// `workers` are all ranks of the run that hold weights; they call it together and get the same
/// result. `weights` has one tensor for each weight of the rank's stage of the model, in the order
/// of its table (weight_table.h). Errors of the exchange name `operation`.
OtherRanks ranks_with_other_weights(Communicator& workers, const RunGrid& run,
                                    const LlamaConfig& model,
                                    const std::vector<at::Tensor>& weights,
                                    std::string_view operation);

/// The names of the ranks that differ and of those that they differ from, for people: replicas or,
/// where these are alike, copies or, where these are too, partners.
struct OtherWeights {
  std::string ranks;   // "ranks 1, 3" or, in a pipeline, "rank 3 (stage 1, replica 1)"
  std::string firsts;  // "rank 0" or, likewise, "rank 2 (stage 1, replica 0)"
  std::string part;    // the weights that differ, as " of the tied embedding", or "" for any
};
OtherWeights name_others(const OtherRanks& others, const RunGrid& run);

/// How many of the weights are infinite or not a number.
int64_t num_not_finite(const std::vector<at::Tensor>& weights);

}  // namespace distca
