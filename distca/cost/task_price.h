#pragma once
// The price of a task: what schedulers balance. In pairs, or in nanoseconds on a measured machine.
// Integers, the same bits on every machine. Any thread.

#include <cstdint>

#include "distca/cost/attention_cost.h"
#include "distca/cost/attention_profile.h"

namespace distca {

class TaskPrice {
 public:
  /// Without a profile: pairs. Borrows the profile.
  explicit TaskPrice(const AttentionShape& shape, const AttentionProfile* profile = nullptr)
      : window_left_(shape.window_left), profile_(profile) {}

  bool in_pairs() const { return profile_ == nullptr; }
  /// Of a task's forward and backward together. Positions in the document.
  /// Monotone: more queries or more keys never cost less.
  int64_t operator()(const Range& q, const Range& kv, MaskType mask = MaskType::kCausal) const;

 private:
  int64_t window_left_;
  const AttentionProfile* profile_;
};

}  // namespace distca
