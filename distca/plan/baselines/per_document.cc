#include "distca/plan/baselines/baselines.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "distca/plan/bounds.h"

namespace distca {
namespace {

/// [2 * workers] blocks of each shard; `tokens` are those the workers hold so far.
std::vector<int64_t> shard_blocks(int64_t blocks, std::span<const int64_t> tokens) {
  const auto workers = static_cast<int64_t>(tokens.size());
  const int64_t shards = 2 * workers;
  std::vector<int64_t> result(shards, blocks / shards);
  int64_t over = blocks % shards;
  if (over == 0) return result;
  std::vector<int64_t> order(workers);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&tokens](int64_t worker) { return tokens[worker]; });
  for (int64_t i = 0; i < over; ++i) {
    const int64_t worker = order[i % workers];
    ++result[i < workers ? worker : shards - 1 - worker];
  }
  return result;
}

}  // namespace

void place_head_and_tail(const Document& document, std::span<std::vector<Segment>> workers,
                         std::span<int64_t> tokens) {
  const int num_shards = 2 * static_cast<int>(workers.size());
  const auto blocks = shard_blocks(ceil_div(document.length, kBlockTokens), tokens);
  int64_t begin = 0;
  for (int shard = 0; shard < num_shards; ++shard) {
    const int64_t end = std::min(begin + blocks[shard] * kBlockTokens, document.length);
    if (begin == end) continue;
    const int worker = std::min(shard, num_shards - 1 - shard);
    auto& segments = workers[worker];
    const bool continues = !segments.empty() && segments.back().document == document.id &&
                           segments.back().tokens.end == begin;
    if (continues) {
      segments.back().tokens.end = end;
    } else {
      segments.push_back({document.id, {begin, end}});
    }
    tokens[worker] += end - begin;
    begin = end;
  }
}

Layout per_document_layout(const PlanRequest& request) {
  Layout layout;
  layout.workers.resize(request.cluster.num_workers);
  std::vector<int64_t> tokens(layout.workers.size(), 0);
  for (const Document& document : request.nano_batch.documents)
    place_head_and_tail(document, layout.workers, tokens);
  check_workers_fit(request, layout);
  return layout;
}

}  // namespace distca
