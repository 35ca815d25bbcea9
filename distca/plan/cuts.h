#pragma once
// Finds the part of a range of rows or keys that has a wanted load. Ranges are positions in
// the document, and parts are cut at multiples of 128. Any thread may call the functions.
//
//   // The last rows of q, with the keys kv, that a server should give away.
//   const auto load = [&](const Range& rows) { return price(rows, kv); };  // TaskPrice price
//   const Range rows = highest(q, load, {.wanted = excess, .most = room});

#include <algorithm>
#include <cstdint>

#include "distca/base/integers.h"
#include "distca/batch/layout.h"

namespace distca {

/// The end of the block that the token is in.
constexpr int64_t block_end(int64_t token) {
  return round_down(token, kBlockTokens) + kBlockTokens;
}

/// The least value in [low, high) for which enough(value) holds, or `high` if it holds for none. If
/// it holds for one value, it must hold for all greater ones.
template <typename Enough>
int64_t bisect(int64_t low, int64_t high, const Enough& enough) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (enough(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// The load that a part should have.
struct LoadWish {
  int64_t wanted = 0;  // at least this, if the whole has it and `most` allows it
  int64_t most = 0;    // at most this, >= wanted; otherwise one block of 128 less
};

/// The common part of lowest() and highest(). part(n) is the part of `whole` that has n blocks,
/// counted from the end at which the caller begins.
template <typename Part, typename Load>
Range fewest_blocks(const Range& whole, const Part& part, const Load& load, const LoadWish& wish) {
  const int64_t all = ceil_div(whole.end, kBlockTokens) - whole.begin / kBlockTokens;
  int64_t blocks = bisect(1, all, [&](int64_t n) { return load(part(n)) >= wish.wanted; });
  if (load(part(blocks)) > wish.most) --blocks;
  return blocks > 0 ? part(blocks) : Range{};
}

/// The fewest first blocks of `whole`, which are rows or keys, that have at least the load
/// wish.wanted; all of them where all have less. load(part) is the load of a part, and a larger
/// part must not have less. One block less is returned where the load would be above wish.most, and
/// nothing where even one block is above it. The larger part is preferred because it ends an excess
/// in one move instead of leaving a small shard. `whole` may not be empty.
template <typename Load>
Range lowest(const Range& whole, const Load& load, const LoadWish& wish) {
  const int64_t first = whole.begin / kBlockTokens;
  const auto part = [&](int64_t blocks) {
    return Range{whole.begin, std::min(whole.end, (first + blocks) * kBlockTokens)};
  };
  return fewest_blocks(whole, part, load, wish);
}

/// Does for the last blocks of `whole` what lowest() does for the first.
template <typename Load>
Range highest(const Range& whole, const Load& load, const LoadWish& wish) {
  const int64_t last = ceil_div(whole.end, kBlockTokens);
  const auto part = [&](int64_t blocks) {
    return Range{std::max(whole.begin, (last - blocks) * kBlockTokens), whole.end};
  };
  return fewest_blocks(whole, part, load, wish);
}

}  // namespace distca
