#include "distca/plan/layout_balanced_price.h"

#include <algorithm>

#include "distca/cost/task_price.h"
#include "distca/plan/shard_shape.h"

namespace distca {
namespace {

/// A segment and the keys before it that its worker neither holds nor reads for an earlier segment.
struct Reader {
  int worker;
  Range tokens;
  Range foreign;
};

/// [document] ascending position within a worker. Segments of a worker are sorted.
std::vector<std::vector<Reader>> readers_of(const PlanRequest& request, const Layout& layout) {
  std::vector<std::vector<Reader>> readers(request.nano_batch.documents.size());
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    const Segment* before = nullptr;
    for (const Segment& segment : layout.workers[worker]) {
      const bool same = before && before->document == segment.document;
      const int64_t first = visible_keys(segment.tokens, request.shape.window_left).begin;
      readers[segment.document].push_back(
          {worker,
           segment.tokens,
           {std::max(first, same ? before->tokens.end : 0), segment.tokens.begin}});
      before = &segment;
    }
  }
  return readers;
}

/// Bytes to move what is above `bound` away from its home.
int64_t overload_bytes(const PlanRequest& request, const std::vector<Segment>& worker,
                       int64_t bound) {
  const TaskPrice price(request.shape, request.profile.get());
  int64_t load = 0;
  int64_t most = 0;
  Range costliest;
  for (const Segment& segment : worker) {
    const Range keys = visible_keys(segment.tokens, request.shape.window_left);
    const int64_t here = price(segment.tokens, keys);
    load += here;
    if (here <= most) continue;
    most = here;
    costliest = segment.tokens;
  }
  if (load <= bound) return 0;
  const auto q_bytes =
      static_cast<double>(request.shape.q_token_bytes() + request.shape.o_token_bytes());
  const auto kv_bytes = static_cast<double>(request.shape.kv_token_bytes());
  const double share = static_cast<double>(load - bound) / static_cast<double>(most);
  const ShardShape shard =
      cheapest_shard(static_cast<double>(costliest.size()), static_cast<double>(costliest.end),
                     std::min(1.0, share), q_bytes, kv_bytes);
  return static_cast<int64_t>((shard.n_q * q_bytes + shard.n_kv * kv_bytes) * std::max(1.0, share));
}

}  // namespace

LayoutPrice price_layout(const PlanRequest& request, const Layout& layout,
                         const std::vector<int64_t>& shares) {
  const int64_t key_bytes = request.shape.kv_token_bytes();
  const double bound = 1 + static_cast<double>(request.options.tolerance_ppm) * 1e-6;
  LayoutPrice price;
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    price.bytes +=
        overload_bytes(request, layout.workers[worker],
                       static_cast<int64_t>(bound * static_cast<double>(shares[worker])));
  }
  std::vector<int64_t> sent(layout.workers.size(), 0);
  std::vector<int64_t> received(layout.workers.size(), 0);
  for (const auto& readers : readers_of(request, layout)) {
    for (const Reader& reader : readers) {
      if (reader.foreign.empty()) continue;
      price.bytes += reader.foreign.size() * key_bytes;
      received[reader.worker] += reader.foreign.size() * key_bytes;
      if (!request.options.spread) continue;
      for (const Reader& holder : readers) {
        const Range both = intersect(holder.tokens, reader.foreign);
        if (!both.empty()) sent[holder.worker] += both.size() * key_bytes;
      }
    }
  }
  for (const auto* bytes : {&sent, &received}) {
    for (const int64_t value : *bytes) price.busiest = std::max(price.busiest, value);
  }
  return price;
}

}  // namespace distca
