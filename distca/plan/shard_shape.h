#pragma once
// The cheapest shard to take out of an item (paper, Appendix B, contiguous form with the corrected
// clamps of `n_q_max` and the lower bound that keeps n_kv within the item). Real numbers of tokens:
// the caller rounds.
// + - * / and sqrt only: the same bits on every machine. Any thread.

namespace distca {

struct ShardShape {
  double n_q = 0;  // query tokens
  double n_kv =
      0;  // keys the last of them sees: the shard is the rows [n_kv - n_q, n_kv) of the document
};

/// Of an item whose item_q queries end at key item_kv, the shard that holds `share` (in (0, 1]) of
/// the item's pairs and moves the fewest bytes, at q_bytes a query token and kv_bytes a key token.
/// Counts: all n_kv keys. Ignores: keys the receiver already has, rounding, tile padding.
ShardShape cheapest_shard(double item_q, double item_kv, double share, double q_bytes,
                          double kv_bytes);

}  // namespace distca
