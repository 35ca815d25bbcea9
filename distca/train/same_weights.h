#pragma once
// Checks that all replicas hold the same weights. Thread rule: as the communicator's.

#include <cstdint>
#include <string_view>
#include <vector>

#include "distca/comm/communicator.h"

namespace at {
class Tensor;
}

namespace distca {

/// A hash of all bytes of all weights, in order.
uint64_t weights_hash(const std::vector<at::Tensor>& weights);

/// The ranks of `workers` whose weights differ from rank 0's in any bit. All ranks call it together
/// and get the same result. Errors of the exchange name `operation`.
std::vector<int> ranks_with_other_weights(Communicator& workers,
                                          const std::vector<at::Tensor>& weights,
                                          std::string_view operation);

/// How many of the weights are infinite or not a number.
int64_t num_not_finite(const std::vector<at::Tensor>& weights);

}  // namespace distca
