#include "distca/plan/balanced/layout_price.h"

#include <algorithm>
#include <tuple>

#include "distca/plan/shard.h"

namespace distca {
namespace {

/// A segment and the keys before it that its worker neither holds nor reads for an earlier segment.
struct Reader {
  int worker;
  Range tokens;
  Range foreign;
};

/// Keys of its own document that each worker sends.
void count_sent(const std::vector<Reader>& readers, std::vector<int64_t>& sent) {
  for (const Reader& reader : readers) {
    for (const Reader& holder : readers) {
      const Range both = intersect(holder.tokens, reader.foreign);
      if (!both.empty()) sent[holder.worker] += both.size();
    }
  }
}

/// Tokens that travel when what is above `bound` leaves its home.
struct Moved {
  int64_t queries = 0;
  int64_t keys = 0;
};

/// Costliest first: all of it as long as the load stays above the bound, then a part.
Moved moved_above(const PlanRequest& request, const TaskPrice& price,
                  const std::vector<Segment>& worker, int64_t bound) {
  struct Task {
    int64_t load;
    Range rows;
  };
  std::vector<Task> tasks;
  int64_t above = -bound;
  for (const Segment& segment : worker) {
    tasks.push_back({price.of_rows(segment.tokens), segment.tokens});
    above += tasks.back().load;
  }
  if (above <= 0) return {};
  std::sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
    return std::tuple(-a.load, a.rows) < std::tuple(-b.load, b.rows);
  });
  const AttentionShape& shape = request.shape;
  Moved moved;
  for (const auto& [load, rows] : tasks) {
    if (above <= 0) break;
    const ShardShape shard =
        cheapest_shard(static_cast<double>(rows.size()), static_cast<double>(rows.end),
                       std::min(1.0, static_cast<double>(above) / static_cast<double>(load)),
                       static_cast<double>(shape.q_token_bytes() + shape.o_token_bytes()),
                       static_cast<double>(shape.kv_token_bytes()));
    moved.queries += static_cast<int64_t>(shard.n_q);
    moved.keys += static_cast<int64_t>(shard.n_kv);
    above -= load;
  }
  return moved;
}

}  // namespace

LayoutPrice price_layout(const PlanRequest& request, const TaskPrice& task_price,
                         const Layout& layout, const std::vector<int64_t>& shares) {
  const AttentionShape& shape = request.shape;
  const int64_t key_bytes = shape.kv_token_bytes();
  const double bound = request.options.most_over_share();
  LayoutPrice price;
  std::vector<int64_t> sent(layout.workers.size(), 0);      // in keys
  std::vector<int64_t> received(layout.workers.size(), 0);  // in keys
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    const auto most = static_cast<int64_t>(bound * static_cast<double>(shares[worker]));
    const Moved moved = moved_above(request, task_price, layout.workers[worker], most);
    sent[worker] += moved.queries * shape.q_token_bytes() / key_bytes;
    price.bytes += moved.queries * (shape.q_token_bytes() + shape.o_token_bytes()) +
                   moved.keys * key_bytes / 2;
  }
  std::vector<std::vector<Reader>> readers(request.nano_batch.documents.size());
  for (int worker = 0; worker < layout.num_workers(); ++worker) {
    const Segment* before = nullptr;
    for (const Segment& segment : layout.workers[worker]) {
      const bool same = before && before->document == segment.document;
      const int64_t first = shape.mask.keys(segment.tokens).begin;
      const Range foreign{std::max(first, same ? before->tokens.end : 0), segment.tokens.begin};
      if (!foreign.empty()) received[worker] += foreign.size();
      if (request.options.spread)
        readers[segment.document].push_back({worker, segment.tokens, foreign});
      before = &segment;
    }
    price.bytes += received[worker] * key_bytes;
  }
  for (const auto& of_document : readers) count_sent(of_document, sent);
  for (const auto* keys : {&sent, &received}) {
    price.busiest = std::max(price.busiest, *std::max_element(keys->begin(), keys->end()));
  }
  price.busiest *= key_bytes;
  return price;
}

}  // namespace distca
