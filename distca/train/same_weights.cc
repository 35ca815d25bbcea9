#include "distca/train/same_weights.h"

#include <ATen/ATen.h>

#include <span>

#include "distca/base/hash.h"
#include "distca/comm/collectives.h"

namespace distca {

uint64_t weights_hash(const std::vector<at::Tensor>& weights) {
  std::vector<uint64_t> hashes;
  for (const at::Tensor& weight : weights) {
    const at::Tensor here = weight.detach().cpu().contiguous();
    hashes.push_back(hash_words({static_cast<const std::byte*>(here.const_data_ptr()),
                                 static_cast<size_t>(here.nbytes())}));
  }
  return hash_words(std::as_bytes(std::span(hashes)));
}

std::vector<int> ranks_with_other_weights(Communicator& workers,
                                          const std::vector<at::Tensor>& weights,
                                          std::string_view operation) {
  const std::vector<uint64_t> all = all_gather(workers, weights_hash(weights), operation);
  std::vector<int> others;
  for (int rank = 1; rank < workers.size(); ++rank) {
    if (all[rank] != all[0]) others.push_back(rank);
  }
  return others;
}

int64_t num_not_finite(const std::vector<at::Tensor>& weights) {
  int64_t count = 0;
  for (const at::Tensor& weight : weights)
    count += weight.numel() - at::isfinite(weight.detach()).sum().item<int64_t>();
  return count;
}

}  // namespace distca
