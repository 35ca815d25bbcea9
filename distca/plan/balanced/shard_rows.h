#pragma once
// Which rows of a piece make a shard of a wanted load: cuts at multiples of 128 from the document's
// start. Any thread.

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

  /// Of rows with all keys they may see.
  int64_t load(const Range& q) const { return price_(q, visible_keys(q, shape_.window_left)); }

  /// The rows below `end` of at least `wanted` load if that is at most `most`, else one block less:
  /// the larger piece first, it ends an excess in one move instead of leaving a crumb. Nothing
  /// where even one block is more than `most`. `end` is a cut; wanted > 0.
  std::optional<Range> ending_at(int64_t end, const Range& q, int64_t wanted, int64_t most) const;
  /// The first rows of q, likewise.
  std::optional<Range> from_begin(const Range& q, int64_t wanted, int64_t most) const;
  /// Where the shard of q with `wanted` load ends that moves the fewest bytes (paper, Appendix B).
  int64_t cheapest_end(const Range& q, int64_t load, int64_t wanted) const;

 private:
  const AttentionShape shape_;
  const TaskPrice& price_;
  const bool closed_form_;  // pairs of all keys: no search
};

}  // namespace distca
