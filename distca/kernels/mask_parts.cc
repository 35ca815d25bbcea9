#include "distca/kernels/mask_parts.h"

#include <algorithm>

#include "distca/base/error.h"

namespace distca::kernels {
namespace {

void cut_block(const Reach& reach, const Range& queries, const Range& keys, size_t range,
               std::vector<MaskPart>& blocks) {
  const auto add = [&](const Range& some, const Range& visible, MaskPartKind kind) {
    if (!some.empty() && !visible.empty()) blocks.push_back({some, visible, range, kind});
  };
  // Keys seen by the last query but not the first start at `square`; keys that the last query no
  // longer sees end at `left`. In between everything is visible.
  const int64_t square = queries.begin + reach.right;
  const int64_t left = queries.end - 1 - reach.left;
  const Range seen = intersect(keys, {queries.begin - reach.left, queries.end + reach.right});
  if (left > square) return add(queries, seen, MaskPartKind::kPartial);
  add(queries, {seen.begin, std::min(seen.end, left)}, MaskPartKind::kPartial);
  add(queries, intersect(seen, {left, square}), MaskPartKind::kFull);
  const Range last = intersect(seen, {square, seen.end});
  if (last.empty()) return;
  const Range diagonal{last.begin - reach.right, last.end - reach.right};
  add(diagonal, last, MaskPartKind::kCausal);
  add({diagonal.end, queries.end}, last, MaskPartKind::kFull);
}

}  // namespace

Reach reach_of(const Mask& mask) {
  Reach reach;
  if (mask.window_left >= 0) reach.left = std::min(mask.window_left, kUnlimited);
  if (mask.window_right >= 0) reach.right = std::min(mask.window_right, kUnlimited);
  if (mask.causal) reach.right = 0;
  return reach;
}

Range visible_keys(const Mask& mask, int64_t query, const Range& keys) {
  const Reach reach = reach_of(mask);
  return intersect(keys, {query - reach.left, query + reach.right + 1});
}

std::vector<MaskPart> cut_mask(const Mask& mask, const Range& queries,
                               std::span<const KeyRange> ranges, int64_t window_queries) {
  DISTCA_CHECK_LT(0, window_queries);
  const Reach reach = reach_of(mask);
  std::vector<MaskPart> blocks;
  const bool left_edge = reach.left < queries.end;  // else no query is further than that from key 0
  const int64_t step = left_edge ? window_queries : std::max<int64_t>(queries.size(), 1);
  for (int64_t begin = queries.begin; begin < queries.end; begin += step) {
    const Range part{begin, std::min(begin + step, queries.end)};
    for (size_t i = 0; i < ranges.size(); ++i) {
      const int64_t first = ranges[i].position;
      cut_block(reach, part, {first, first + ranges[i].tokens}, i, blocks);
    }
  }
  return blocks;
}

}  // namespace distca::kernels
