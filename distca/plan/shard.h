#pragma once
// Finds the rows to cut from a shard so that they have a wanted load. Cuts are at multiples of 128
// from the document's start, or where the shard itself begins or ends. Only + - * / and sqrt are
// used, so the bits are the same on every machine. Any thread may call the functions.
//
//   const ShardRows shards(shape, price);  // AttentionShape shape, TaskPrice price
//   const Range last = shards.ending_at(q.end, q, {.wanted = excess, .most = room});

#include <array>
#include <cstdint>

#include "distca/cost/task_price.h"
#include "distca/plan/cuts.h"

namespace distca {

struct ShardShape {
  double n_q = 0;  // query tokens
  /// The keys that the last query sees: the shard is the rows [n_kv - n_q, n_kv) of the document.
  double n_kv = 0;
};

/// The cheapest shard to take out of an item, which is a contiguous range of queries with their
/// keys (paper, Appendix B, in its contiguous form; the clamps of `n_q_max` and the lower bound
/// that keeps n_kv within the item are corrected). The item has item_q queries, which end at key
/// item_kv. Of all shards that hold `share` (in (0, 1]) of the item's pairs, this is the one that
/// moves the fewest bytes, where a query token takes q_bytes and a key token kv_bytes. Tokens are
/// real numbers, which the caller rounds.
/// Counts: all n_kv keys. Ignores: keys that the receiver already has, rounding, tile padding.
ShardShape cheapest_shard(double item_q, double item_kv, double share, double q_bytes,
                          double kv_bytes);

class ShardRows {
 public:
  /// Borrows the price, which must be that of the shape.
  ShardRows(const AttentionShape& shape, const TaskPrice& price) : shape_(shape), price_(price) {}

  /// The fewest whole blocks of q just below `end` that have the load of the wish, as highest() in
  /// cuts.h finds them, where rows have all keys that they may see. Empty where even one block is
  /// above wish.most. `end` is an allowed cut, and wish.wanted > 0.
  Range ending_at(int64_t end, const Range& q, const LoadWish& wish) const;
  /// Does for the first blocks of q what ending_at() does, as lowest() in cuts.h finds them.
  Range from_begin(const Range& q, const LoadWish& wish) const;
  /// Where that shard of q with the load `wanted` ends that moves the fewest bytes
  /// (cheapest_shard), rounded to an allowed cut. `load` is that of q.
  int64_t cheapest_end(const Range& q, int64_t load, int64_t wanted) const;
  /// The allowed cut for a shard of q that should end at `end`: the highest multiple of 128
  /// up to it, but q.end where less than a block would remain behind it, and at least the end of
  /// q's first block.
  static int64_t allowed_end(const Range& q, int64_t end);

 private:
  const AttentionShape shape_;
  const TaskPrice& price_;
};

/// The first and the last block of q, which may be the same one. They are parts of blocks where q
/// begins or ends within one.
inline std::array<Range, 2> end_blocks(const Range& q) {
  return {Range{q.begin, std::min(block_end(q.begin), q.end)},
          Range{std::max(q.begin, round_down(q.end - 1, kBlockTokens)), q.end}};
}

}  // namespace distca
