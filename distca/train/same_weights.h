#pragma once
// Do the replicas hold the same weights? Thread rule: as the communicator.

#include <cstdint>
#include <string_view>
#include <vector>

#include "distca/comm/communicator.h"

namespace at {
class Tensor;
}

namespace distca {

/// Of all bytes of all weights, in order.
uint64_t weights_hash(const std::vector<at::Tensor>& weights);

/// The ranks of `workers` whose weights are not rank 0's, bit for bit; the same on all of them.
std::vector<int> ranks_with_other_weights(Communicator& workers,
                                          const std::vector<at::Tensor>& weights,
                                          std::string_view operation);

/// How many of the weights are infinite or not a number.
int64_t num_not_finite(const std::vector<at::Tensor>& weights);

}  // namespace distca
