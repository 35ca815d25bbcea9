#include "distca/cost/mask.h"

#include <algorithm>

namespace distca {

namespace {

/// Pairs of q x kv with key <= query.
int64_t pairs_up_to_query(const Range& q, const Range& kv) {
  // Query i sees keys [kv.begin, min(i + 1, kv.end)): none below kv.begin, a triangle, then all of
  // kv.
  const Range triangle = intersect(q, kv);
  int64_t pairs = 0;
  if (!triangle.empty()) {
    const int64_t first = triangle.begin + 1 - kv.begin;
    const int64_t last = triangle.end - kv.begin;
    pairs += (first + last) * triangle.size() / 2;
  }
  const Range beyond{std::max(q.begin, kv.end), q.end};
  if (!beyond.empty()) pairs += beyond.size() * kv.size();
  return pairs;
}

}  // namespace

int64_t Mask::causal_pairs(const Range& q, const Range& kv, int64_t window_left) {
  int64_t pairs = pairs_up_to_query(q, kv);
  if (window_left >= 0) {
    // Pairs with key < query - window_left do not count. They are the causal pairs of the queries
    // moved down past the window.
    const int64_t moved = window_left + 1;
    const Range left{std::max(q.begin, moved) - moved, std::max(q.end, moved) - moved};
    if (!left.empty()) pairs -= pairs_up_to_query(left, kv);
  }
  return pairs;
}

Range Mask::keys(const Range& q) const {
  if (window_left < 0) return {0, q.end};
  return {round_down(std::max<int64_t>(0, q.begin - window_left), 128), q.end};
}

}  // namespace distca
