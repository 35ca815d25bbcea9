#pragma once
// The price of a task: what schedulers balance. In pairs, or in nanoseconds on a measured machine
// (paper 4.2). The same bits on every machine. Any thread.
//
// In nanoseconds, a task of `q` queries and `pairs` pairs costs what a causal task of q queries,
// the last of kv keys, with as many pairs costs: kv = pairs / q + (q - 1) / 2. With fewer pairs
// than the triangle of its queries has, it costs what the triangle of as many pairs costs. A
// profile says: time = pairs / throughput, the throughput bilinear between the 4 nearest measured
// points; beyond the grid the throughput of its edge, by pairs; below it the time of its edge (tile
// padding: a shard of 1 query costs what the fewest measured queries cost).
//
// Counts: what the profile's machine took for such a task. Ignores: which keys the pairs are of (a
// window, a part of the keys), tiles of more than the fewest queries begun but not filled, other
// tasks of the same call. A task of another shape than the profile's is scaled by heads x dims, as
// if the machine were as fast; the type is not looked at.

#include <cstdint>
#include <vector>

#include "distca/cost/attention_cost.h"
#include "distca/cost/attention_profile.h"

namespace distca {

class TaskPrice {
 public:
  /// Largest price of one pass of a task, in ns: longer ones are cut to this.
  static constexpr int64_t kMostNs = int64_t{1} << 60;

  /// Without a profile: pairs. The profile is read here only; its tables take about 0.1 ms, so make
  /// one object a plan. CHECKs the profile (attention_profile.h, profile_fault).
  explicit TaskPrice(const AttentionShape& shape, const AttentionProfile* profile = nullptr);

  bool in_pairs() const { return nodes_.empty(); }
  /// Of a task's forward and backward together, 0 for one without pairs. Positions in the document,
  /// up to 2^30. Monotone: more queries or more keys never cost less.
  int64_t operator()(const Range& q, const Range& kv, MaskType mask = MaskType::kCausal) const {
    const int64_t pairs = attention_pairs(q, kv, mask, window_left_);
    if (in_pairs() || pairs == 0) return pairs;
    const Nanoseconds time = nanoseconds(q.size(), pairs);
    return time.forward + time.backward;
  }
  /// Of one pass, in ns; they add up to the price. Only with a profile (CHECK).
  int64_t forward_ns(const Range& q, const Range& kv, MaskType mask = MaskType::kCausal) const;
  int64_t backward_ns(const Range& q, const Range& kv, MaskType mask = MaskType::kCausal) const;

 private:
  struct Nanoseconds {
    int64_t forward, backward;
  };
  struct Node {
    double forward = 0, backward = 0;  // ns
  };

  void build(const AttentionProfile& profile, double scale);
  Nanoseconds nanoseconds(int64_t queries, int64_t pairs) const;

  int64_t window_left_;
  // Times at queries x keys, 8 steps an octave: bilinear between these is as good as the profile
  // and monotone, for they are. Queries above keys repeat the triangle.
  std::vector<Node> nodes_;
  size_t columns_ = 0;
  uint64_t first_q_step_ = 0, first_kv_step_ = 0;
  double q_least_ = 0, q_most_ = 0, kv_least_ = 0, kv_most_ = 0;  // the profile's grid
};

}  // namespace distca
