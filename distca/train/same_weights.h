#pragma once
// Checks that all replicas hold the same weights: in a pipeline, those of each stage. Thread rule:
// as the communicator's.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/train/run_grid.h"

namespace at {
class Tensor;
}

namespace distca {

/// A hash of all bytes of all weights, in order.
uint64_t weights_hash(const std::vector<at::Tensor>& weights);

/// The ranks whose weights differ in any bit from those of the first replica of their stage.
/// `workers` are all ranks of the run that hold weights; they call it together and get the same
/// result. Errors of the exchange name `operation`.
std::vector<int> ranks_with_other_weights(Communicator& workers, const RunGrid& run,
                                          const std::vector<at::Tensor>& weights,
                                          std::string_view operation);

/// Who differs from whom, for people.
struct OtherWeights {
  std::string ranks;   // "ranks 1, 3" or, in a pipeline, "rank 3 (stage 1, replica 1)"
  std::string firsts;  // "rank 0" or, likewise, "rank 2 (stage 1, replica 0)"
};
OtherWeights name_others(const std::vector<int>& others, const RunGrid& run);

/// How many of the weights are infinite or not a number.
int64_t num_not_finite(const std::vector<at::Tensor>& weights);

}  // namespace distca
