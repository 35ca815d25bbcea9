#include "distca/train/same_weights.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
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

std::vector<int> ranks_with_other_weights(Communicator& workers, const RunGrid& run,
                                          const std::vector<at::Tensor>& weights,
                                          std::string_view operation) {
  const std::vector<uint64_t> all = all_gather(workers, weights_hash(weights), operation);
  std::vector<int> others;
  for (int rank = 0; rank < workers.size(); ++rank) {
    if (all[rank] != all[run.first_replica(rank)]) others.push_back(rank);
  }
  return others;
}

OtherWeights name_others(const std::vector<int>& others, const RunGrid& run) {
  if (!run.is_pipeline()) {
    return {
        .ranks = fmt::format("rank{} {}", others.size() > 1 ? "s" : "", fmt::join(others, ", ")),
        .firsts = "rank 0"};
  }
  std::vector<std::string> ranks, firsts;
  for (const int rank : others) {
    ranks.push_back(run.name_of(rank));
    const std::string first = run.name_of(run.first_replica(rank));
    if (std::ranges::find(firsts, first) == firsts.end()) firsts.push_back(first);
  }
  return {.ranks = fmt::format("{}", fmt::join(ranks, ", ")),
          .firsts = fmt::format("{}", fmt::join(firsts, ", "))};
}

int64_t num_not_finite(const std::vector<at::Tensor>& weights) {
  int64_t count = 0;
  for (const at::Tensor& weight : weights)
    count += weight.numel() - at::isfinite(weight.detach()).sum().item<int64_t>();
  return count;
}

}  // namespace distca
