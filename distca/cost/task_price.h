#pragma once
// The price of a task is what schedulers balance. It is in (query, key) pairs, or with a profile in
// nanoseconds on the profile's machine (paper 4.2). Prices have the same bits on every machine.
//
//   const TaskPrice price(plan.shape, profile.get());  // without a profile: TaskPrice(plan.shape)
//   const int64_t load = price(task.q, task.kv, task.mask);
//
// In nanoseconds, a task of `q` queries and `pairs` pairs costs as much as a causal task of q
// queries, the last of kv keys, with equally many pairs: kv = pairs / q + (q - 1) / 2. If it has
// fewer pairs than the triangle of its queries, it costs as much as the triangle with equally many
// pairs. The time is pairs / throughput, and the throughput is bilinear between the 4 nearest
// points of the profile. Beyond the grid, the throughput of the grid's edge holds. Below the grid,
// the time of its edge holds (tile padding: a shard of 1 query costs what the fewest measured
// queries cost).
//
// Counts: what the profile's machine took for such a task. Ignores: which keys the pairs belong to
// (a window, a part of the keys); whether the last tile of queries is full, where there are more
// queries than the fewest measured; other tasks of the same call. A task of another shape than the
// profile's is scaled by heads x dims, as if the machine were as fast; the type is ignored.
//
// Any thread may use a TaskPrice.

#include <cstdint>
#include <vector>

#include "distca/cost/attention_profile.h"
#include "distca/cost/attention_shape.h"

namespace distca {

class TaskPrice {
 public:
  /// The largest price of one pass of a task, in ns. Longer times are cut to it.
  static constexpr int64_t kMostNs = int64_t{1} << 60;

  /// Without a profile, prices are pairs. The profile is read here and not later. Its tables take
  /// about 0.1 ms, so make one object for each plan. CHECKs the profile (profile_fault in
  /// attention_profile.h).
  explicit TaskPrice(const AttentionShape& shape, const AttentionProfile* profile = nullptr);

  bool in_pairs() const { return nodes_.empty(); }  // otherwise in ns
  /// Returns true if the price of rows is their pairs with all keys before them, so that rows of a
  /// price can be computed and need not be searched.
  bool has_closed_form() const { return has_closed_form_; }
  /// The price of a task's forward and backward together, 0 for a task without pairs. Ranges are
  /// positions in the document, up to 2^30. The price is monotone: more queries or more keys never
  /// cost less.
  int64_t operator()(const Range& q, const Range& kv, MaskKind kind = MaskKind::kCausal) const {
    const int64_t pairs = mask_.of_task(kind).pairs(q, kv);
    if (in_pairs() || pairs == 0) return pairs;
    const Passes time = nanoseconds(q.size(), pairs);
    return time.forward + time.backward;
  }
  /// The price of rows with all keys that they may see.
  int64_t of_rows(const Range& q) const {
    if (has_closed_form_) {  // the most frequent case in searches: two triangles
      return (q.end * (q.end + 1) - q.begin * (q.begin + 1)) / 2;
    }
    return (*this)(q, mask_.keys(q));
  }
  struct Passes {
    int64_t forward, backward;  // ns
  };
  /// The price of each pass. Both add up to the price. Only with a profile (CHECK).
  Passes passes(const Range& q, const Range& kv, MaskKind kind = MaskKind::kCausal) const;
  /// Likewise, of a task of so many queries and pairs.
  Passes passes(int64_t queries, int64_t pairs) const;

 private:
  struct Node {
    double forward = 0, backward = 0;  // ns
  };

  void build(const AttentionProfile& profile, double scale);
  Passes nanoseconds(int64_t queries, int64_t pairs) const;

  Mask mask_;
  bool has_closed_form_;
  // Times at queries x keys, with 8 steps for each octave. Bilinear interpolation between them is
  // as good as the profile, and it is monotone because they are. Entries with more queries than
  // keys repeat the triangle.
  std::vector<Node> nodes_;
  size_t columns_ = 0;
  uint64_t first_q_step_ = 0, first_kv_step_ = 0;
  double q_least_ = 0, q_most_ = 0, kv_least_ = 0, kv_most_ = 0;  // ends of the profile's grid
};

}  // namespace distca
