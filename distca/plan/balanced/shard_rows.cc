#include "distca/plan/balanced/shard_rows.h"

#include <algorithm>
#include <cmath>

#include "distca/batch/layout.h"
#include "distca/plan/shard_shape.h"

namespace distca {

std::optional<Range> ShardRows::ending_at(int64_t end, const Range& q, int64_t wanted,
                                          int64_t most) const {
  int64_t begin = 0;
  if (closed_form_) {
    const double middle = static_cast<double>(end) + 0.5;
    const double root =
        std::sqrt(std::max(0.0, middle * middle - 2.0 * static_cast<double>(wanted)));
    begin = std::max(q.begin, round_down(static_cast<int64_t>(root - 0.5), kBlockTokens));
  } else {
    int64_t low = q.begin / kBlockTokens;
    int64_t high = ceil_div(end, kBlockTokens) - 1;
    while (low < high) {  // the highest begin that reaches `wanted`
      const int64_t middle = (low + high + 1) / 2;
      if (load({middle * kBlockTokens, end}) >= wanted) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    begin = low * kBlockTokens;
  }
  if (load({begin, end}) > most) begin += kBlockTokens;
  if (begin >= end || load({begin, end}) > most) return std::nullopt;
  return Range{begin, end};
}

std::optional<Range> ShardRows::from_begin(const Range& q, int64_t wanted, int64_t most) const {
  int64_t low = q.begin / kBlockTokens + 1;
  int64_t high = ceil_div(q.end, kBlockTokens);
  if (closed_form_) {
    const double below = static_cast<double>(q.begin) + 0.5;
    const double root = std::sqrt(below * below + 2.0 * static_cast<double>(wanted));
    low = std::clamp(static_cast<int64_t>(root - 0.5) / kBlockTokens + 1, low, high);
  } else {
    while (low < high) {  // the lowest end that reaches `wanted`
      const int64_t middle = (low + high) / 2;
      if (load({q.begin, std::min(middle * kBlockTokens, q.end)}) >= wanted) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
  }
  int64_t end = std::min(low * kBlockTokens, q.end);
  if (load({q.begin, end}) > most) end = round_down(end - 1, kBlockTokens);
  if (end <= q.begin || load({q.begin, end}) > most) return std::nullopt;
  return Range{q.begin, end};
}

int64_t ShardRows::cheapest_end(const Range& q, int64_t load, int64_t wanted) const {
  const ShardShape shape =
      cheapest_shard(static_cast<double>(q.size()), static_cast<double>(q.end),
                     static_cast<double>(wanted) / static_cast<double>(load),
                     static_cast<double>(shape_.q_token_bytes() + shape_.o_token_bytes()),
                     static_cast<double>(shape_.kv_token_bytes()));
  const int64_t end = round_down(static_cast<int64_t>(shape.n_kv) + kBlockTokens / 2, kBlockTokens);
  if (q.end - end < kBlockTokens) return q.end;
  return std::max(end, q.begin + kBlockTokens);
}

}  // namespace distca
