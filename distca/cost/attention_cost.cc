#include "distca/cost/attention_cost.h"

#include <algorithm>

namespace distca {

int64_t attention_pairs(const Range& q, const Range& kv, MaskType mask) {
  if (q.empty() || kv.empty()) return 0;
  if (mask == MaskType::kFull) return q.size() * kv.size();
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

}  // namespace distca
