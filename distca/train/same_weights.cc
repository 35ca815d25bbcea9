#include "distca/train/same_weights.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/comm/collectives.h"
#include "distca/comm/host_read.h"
#include "distca/model/weight_table.h"

namespace distca {

namespace {

/// Hashes of all bytes of a rank's weights.
struct Hashes {
  uint64_t weights = 0;  // all weights, in order
  uint64_t tied = 0;     // the tied embedding alone; 0 where the stage has none
};

Hashes hashes_of(const std::vector<at::Tensor>& weights, const std::vector<Weight>& table) {
  DISTCA_CHECK_EQ(weights.size(), table.size());
  Hashes result;
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor here = host_copy(weights[i]).contiguous();
    hashes.push_back(hash_words({static_cast<const std::byte*>(here.const_data_ptr()),
                                 static_cast<size_t>(here.nbytes())}));
    if (table[i].is_tied) result.tied = hashes.back();
  }
  result.weights = hash_words(std::as_bytes(std::span(hashes)));
  return result;
}

}  // namespace

OtherRanks ranks_with_other_weights(Communicator& workers, const RunGrid& run,
                                    const LlamaConfig& model,
                                    const std::vector<at::Tensor>& weights,
                                    std::string_view operation) {
  const std::vector<Weight> table = weight_table(model, run.stage_of(workers.rank()));
  const std::vector<Hashes> all = all_gather(workers, hashes_of(weights, table), operation);
  OtherRanks others;
  for (int rank = 0; rank < workers.size(); ++rank) {
    if (all[rank].weights != all[run.first_replica(rank)].weights) others.replicas.push_back(rank);
    const bool has_copy = model.tie_word_embeddings && run.stage_of(rank).is_last();
    if (has_copy && all[rank].tied != all[0].tied) others.copies.push_back(rank);
  }
  return others;
}

OtherWeights name_others(const OtherRanks& others, const RunGrid& run) {
  const bool of_copies = others.replicas.empty();
  const std::vector<int>& named = of_copies ? others.copies : others.replicas;
  if (!run.is_pipeline()) {
    return {.ranks = fmt::format("rank{} {}", named.size() > 1 ? "s" : "", fmt::join(named, ", ")),
            .firsts = "rank 0"};
  }
  std::vector<std::string> ranks, firsts;
  for (const int rank : named) {
    ranks.push_back(run.name_of(rank));
    const std::string first = run.name_of(of_copies ? 0 : run.first_replica(rank));
    if (std::ranges::find(firsts, first) == firsts.end()) firsts.push_back(first);
  }
  return {.ranks = fmt::format("{}", fmt::join(ranks, ", ")),
          .firsts = fmt::format("{}", fmt::join(firsts, ", ")),
          .part = of_copies ? " of the tied embedding" : ""};
}

int64_t num_not_finite(const std::vector<at::Tensor>& weights) {
  int64_t count = 0;
  for (const at::Tensor& weight : weights)
    count += weight.numel() - std::llround(host_number(at::isfinite(weight.detach()).sum()));
  return count;
}

}  // namespace distca
