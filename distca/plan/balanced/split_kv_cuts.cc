#include "distca/plan/balanced/split_kv_cuts.h"

#include <algorithm>

#include "distca/batch/layout.h"

namespace distca {
namespace {

/// part(n): n blocks of `whole`.
template <typename Part, typename Load>
Range enough(const Range& whole, const Part& part, const Load& load, const LoadWish& wish) {
  int64_t low = 1;
  int64_t high = ceil_div(whole.end, kBlockTokens) - whole.begin / kBlockTokens;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (load(part(middle)) >= wish.wanted) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (load(part(low)) > wish.most) --low;
  return low > 0 ? part(low) : Range{};
}

template <typename Load>
Range lowest(const Range& whole, const Load& load, const LoadWish& wish) {
  const int64_t first = whole.begin / kBlockTokens;
  const auto part = [&](int64_t blocks) {
    return Range{whole.begin, std::min(whole.end, (first + blocks) * kBlockTokens)};
  };
  return enough(whole, part, load, wish);
}

template <typename Load>
Range highest(const Range& whole, const Load& load, const LoadWish& wish) {
  const int64_t last = ceil_div(whole.end, kBlockTokens);
  const auto part = [&](int64_t blocks) {
    return Range{std::max(whole.begin, (last - blocks) * kBlockTokens), whole.end};
  };
  return enough(whole, part, load, wish);
}

}  // namespace

Range highest_rows(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish) {
  return highest(
      q, [&](const Range& rows) { return price(rows, kv); }, wish);
}

Range lowest_rows(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish) {
  return lowest(
      q, [&](const Range& rows) { return price(rows, kv); }, wish);
}

Range lowest_keys(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish) {
  return lowest(
      kv, [&](const Range& keys) { return price(q, keys); }, wish);
}

Range highest_keys(const TaskPrice& price, const Range& q, const Range& kv, const LoadWish& wish) {
  return highest(
      kv, [&](const Range& keys) { return price(q, keys); }, wish);
}

}  // namespace distca
