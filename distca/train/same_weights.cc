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
  uint64_t weights = 0;    // all weights, in order
  uint64_t tied = 0;       // the tied embedding alone; 0 where the stage has none
  uint64_t undivided = 0;  // weights that all ranks of a server hold
  uint64_t shared = 0;     // weights that some of them hold: K and V of few heads
};

Hashes hashes_of(const std::vector<at::Tensor>& weights, const std::vector<Weight>& table) {
  DISTCA_CHECK_EQ(weights.size(), table.size());
  Hashes result;
  std::vector<uint64_t> hashes, undivided, shared;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor here = host_copy(weights[i]).contiguous();
    hashes.push_back(hash_words({static_cast<const std::byte*>(here.const_data_ptr()),
                                 static_cast<size_t>(here.nbytes())}));
    if (table[i].is_tied) result.tied = hashes.back();
    if (table[i].split == SplitAxis::kNone) {
      undivided.push_back(hashes.back());
    } else if (table[i].holders.size() > 1) {
      shared.push_back(hashes.back());
    }
  }
  result.weights = hash_words(std::as_bytes(std::span(hashes)));
  result.undivided = hash_words(std::as_bytes(std::span(undivided)));
  result.shared = hash_words(std::as_bytes(std::span(shared)));
  return result;
}

/// The first of the ranks of a server that share K and V with this one.
int first_sharer(const RunGrid& run, const LlamaConfig& model, int rank) {
  const int64_t sharers = std::max<int64_t>(1, run.tensor / model.num_key_value_heads);
  return rank - static_cast<int>(run.tensor_index(rank) % sharers);
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
    const int index = run.tensor_index(rank), first = rank - index;
    if (has_copy && all[rank].tied != all[index].tied) others.copies.push_back(rank);
    if (all[rank].undivided != all[first].undivided) {
      others.partners.emplace_back(rank, first);
    } else if (const int sharer = first_sharer(run, model, rank);
               all[rank].shared != all[sharer].shared) {
      others.partners.emplace_back(rank, sharer);
    }
  }
  return others;
}

OtherWeights name_others(const OtherRanks& others, const RunGrid& run) {
  if (!run.divides_model()) {
    return {.ranks = fmt::format("rank{} {}", others.replicas.size() > 1 ? "s" : "",
                                 fmt::join(others.replicas, ", ")),
            .firsts = "rank 0"};
  }
  std::vector<std::pair<int, int>> pairs;  // a rank, and the one that it differs from
  std::string part;
  for (const int rank : others.replicas) pairs.emplace_back(rank, run.first_replica(rank));
  if (pairs.empty() && !others.copies.empty()) {
    for (const int rank : others.copies) pairs.emplace_back(rank, run.tensor_index(rank));
    part = " of the tied embedding";
  } else if (pairs.empty()) {
    pairs = others.partners;
    part = " that ranks of a server share";
  }
  std::vector<std::string> ranks, firsts;
  for (const auto& [rank, of] : pairs) {
    ranks.push_back(run.name_of(rank));
    const std::string first = run.name_of(of);
    if (std::ranges::find(firsts, first) == firsts.end()) firsts.push_back(first);
  }
  return {.ranks = fmt::format("{}", fmt::join(ranks, ", ")),
          .firsts = fmt::format("{}", fmt::join(firsts, ", ")),
          .part = part};
}

int64_t num_not_finite(const std::vector<at::Tensor>& weights) {
  int64_t count = 0;
  for (const at::Tensor& weight : weights)
    count += weight.numel() - std::llround(host_number(at::isfinite(weight.detach()).sum()));
  return count;
}

}  // namespace distca
