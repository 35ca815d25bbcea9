#pragma once
// Pipelines for tests: requests, and the work of ranks in the units of the tick model.

#include <algorithm>
#include <vector>

#include "distca/plan/pipeline/pipeline_plan.h"
#include "distca/plan/plan_testing.h"

namespace distca::testing {

/// A request for these nano-batches (lengths of documents), laid out as one stage alone would.
inline PipelineRequest pipeline_request(const Grid& grid, int slots,
                                        const std::vector<std::vector<int64_t>>& nano_batches,
                                        const std::string& scheduler = "balanced") {
  PipelineRequest request{.grid = grid,
                          .slots = slots,
                          .nano_batches = {},
                          .homes = {},
                          .shape = {.num_heads = 4, .num_kv_heads = 1},
                          .options = {.scheduler = scheduler},
                          .speeds = {},
                          .ends = {},
                          .capacity = {},
                          .cluster = {}};
  for (const std::vector<int64_t>& lengths : nano_batches) {
    const PlanRequest home = request_for(lengths, grid.replicas, scheduler);
    request.nano_batches.push_back(home.nano_batch);
    request.homes.push_back(make_layout(home));
  }
  return request;
}

/// Speeds with which core attention is this share of the whole work of all nano-batches.
inline void set_attention_share(PipelineRequest& request, double share) {
  constexpr int64_t kLinearPs = 3'000'000;  // linear work of a token, forward and backward
  double tokens = 0, pairs = 0;
  for (const NanoBatch& nano_batch : request.nano_batches) {
    for (const Document& document : nano_batch.documents) {
      const auto length = static_cast<double>(document.length);
      tokens += length;
      pairs += length * (length + 1) / 2;
    }
  }
  // Forward's share: l = 1/3 of linear work, A = 2/7 of attention.
  const double attention = tokens * kLinearPs / 3 * share / (1 - share) * 3.5;
  const RankSpeed worker{.linear_ps_per_token = kLinearPs,
                         .attention_ps_per_kload =
                             std::max<int64_t>(1, static_cast<int64_t>(1000 * attention / pairs))};
  request.speeds.assign(request.grid.num_workers(), worker);
  RankSpeed dedicated = worker;
  dedicated.linear_ps_per_token = 0;
  request.speeds.resize(request.grid.num_ranks(), dedicated);
}

/// Like those of a packed batch: `tokens` in all, documents of 128 to 2,048 tokens, most of them
/// short.
inline std::vector<int64_t> many_lengths(int64_t tokens, Random& random) {
  std::vector<int64_t> lengths;
  while (tokens > 0) {
    const uint64_t most = random.below(8) == 0 ? 2048 : 512;
    lengths.push_back(std::min(tokens, 16 + static_cast<int64_t>(random.below(most))));
    tokens -= lengths.back();
  }
  return lengths;
}

}  // namespace distca::testing
