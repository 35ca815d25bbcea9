#pragma once
// The cheapest shard to take out of an item, which is a contiguous range of queries with their keys
// (paper, Appendix B, in its contiguous form; the clamps of `n_q_max` and the lower bound that
// keeps n_kv within the item are corrected). Tokens are real numbers, which the caller rounds. Only
// + - * / and sqrt are used, so the bits are the same on every machine. Any thread may call the
// function.

namespace distca {

struct ShardShape {
  double n_q = 0;  // query tokens
  /// The keys that the last query sees: the shard is the rows [n_kv - n_q, n_kv) of the document.
  double n_kv = 0;
};

/// The item has item_q queries, which end at key item_kv. Of all shards that hold `share` (in (0,
/// 1]) of the item's pairs, this is the one that moves the fewest bytes, where a query token takes
/// q_bytes and a key token kv_bytes.
/// Counts: all n_kv keys. Ignores: keys that the receiver already has, rounding, tile padding.
ShardShape cheapest_shard(double item_q, double item_kv, double share, double q_bytes,
                          double kv_bytes);

}  // namespace distca
