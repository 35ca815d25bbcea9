#pragma once
// Finds the rows of a piece that make a shard of a wanted load. Cuts are at multiples of 128 from
// the document's start. Any thread may call it.

#include <cstdint>
#include <optional>

#include "distca/base/integers.h"
#include "distca/cost/task_price.h"

namespace distca {

class ShardRows {
 public:
  /// Borrows the price.
  ShardRows(const AttentionShape& shape, const TaskPrice& price)
      : shape_(shape), price_(price), closed_form_(price.in_pairs() && shape.window_left < 0) {}

  /// The load of rows with all keys that they may see.
  int64_t load(const Range& q) const { return price_(q, visible_keys(q, shape_.window_left)); }

  /// The fewest whole blocks of q just below `end` that have at least the load `wanted`, or one
  /// block less where their load is above `most`. The larger shard is preferred because it ends an
  /// excess in one move instead of leaving a crumb. Nothing where even one block is above `most`.
  /// `end` is an allowed cut, and wanted > 0.
  std::optional<Range> ending_at(int64_t end, const Range& q, int64_t wanted, int64_t most) const;
  /// The same for the first blocks of q.
  std::optional<Range> from_begin(const Range& q, int64_t wanted, int64_t most) const;
  /// Where that shard of q with the load `wanted` ends that moves the fewest bytes (paper, Appendix
  /// B). `load` is that of q.
  int64_t cheapest_end(const Range& q, int64_t load, int64_t wanted) const;

 private:
  const AttentionShape shape_;
  const TaskPrice& price_;
  const bool closed_form_;  // pairs of all keys: rows are computed, not searched
};

}  // namespace distca
