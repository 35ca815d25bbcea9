#include "distca/plan/shard.h"

#include <algorithm>
#include <cmath>

namespace distca {

ShardShape cheapest_shard(double item_q, double item_kv, double share, double q_bytes,
                          double kv_bytes) {
  const double ratio = kv_bytes / q_bytes;
  const double area = share * item_q * (2 * item_kv - item_q);  // twice the pairs
  const double below = item_q - item_kv;                        // minus the keys before the item
  const double n_q_best = std::sqrt(area * ratio / (ratio + 2));
  const double n_q_min = item_kv - std::sqrt(std::max(0.0, item_kv * item_kv - area));
  const double n_q_max = below + std::sqrt(below * below + area);
  const double n_q = std::min(std::max(n_q_best, n_q_min), n_q_max);
  return {.n_q = n_q, .n_kv = (area / n_q + n_q) / 2};
}

Range ShardRows::ending_at(int64_t end, const Range& q, const LoadWish& wish) const {
  const auto load = [this](const Range& rows) { return price_.of_rows(rows); };
  if (!price_.has_closed_form()) return highest({q.begin, end}, load, wish);
  const double middle = static_cast<double>(end) + 0.5;
  const double root =
      std::sqrt(std::max(0.0, middle * middle - 2.0 * static_cast<double>(wish.wanted)));
  Range rows{std::max(q.begin, round_down(static_cast<int64_t>(root - 0.5), kBlockTokens)), end};
  if (load(rows) > wish.most) rows.begin = block_end(rows.begin);
  return rows.empty() || load(rows) > wish.most ? Range{} : rows;
}

Range ShardRows::from_begin(const Range& q, const LoadWish& wish) const {
  const auto load = [this](const Range& rows) { return price_.of_rows(rows); };
  if (!price_.has_closed_form()) return lowest(q, load, wish);
  const double below = static_cast<double>(q.begin) + 0.5;
  const double root = std::sqrt(below * below + 2.0 * static_cast<double>(wish.wanted));
  const int64_t block = std::clamp(static_cast<int64_t>(root - 0.5) / kBlockTokens + 1,
                                   q.begin / kBlockTokens + 1, ceil_div(q.end, kBlockTokens));
  Range rows{q.begin, std::min(block * kBlockTokens, q.end)};
  if (load(rows) > wish.most) rows.end = round_down(rows.end - 1, kBlockTokens);
  return rows.empty() || load(rows) > wish.most ? Range{} : rows;
}

int64_t ShardRows::cheapest_end(const Range& q, int64_t load, int64_t wanted) const {
  const ShardShape shape =
      cheapest_shard(static_cast<double>(q.size()), static_cast<double>(q.end),
                     static_cast<double>(wanted) / static_cast<double>(load),
                     static_cast<double>(shape_.q_token_bytes() + shape_.o_token_bytes()),
                     static_cast<double>(shape_.kv_token_bytes()));
  return allowed_end(q, static_cast<int64_t>(shape.n_kv) + kBlockTokens / 2);
}

int64_t ShardRows::allowed_end(const Range& q, int64_t end) {
  end = round_down(end, kBlockTokens);
  return q.end - end < kBlockTokens ? q.end : std::min(q.end, std::max(end, block_end(q.begin)));
}

}  // namespace distca
