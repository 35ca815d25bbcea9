#pragma once
// The mask of core attention: which keys a query sees, by positions in the document. Planning,
// prices and counts ask this value for pairs and keys and know no window themselves. The validator
// of plans reads the value, too, and has an arithmetic of its own. `kernel_mask`
// (runtime/task_lists.h) makes of it what kernels compute by. Any thread may call the functions.
//
//   const Mask mask{.window_left = 1023};  // a query sees itself and 1,023 keys before it
//   const int64_t pairs = mask.pairs(task.q, mask.keys(task.q));

#include <cstdint>

#include "distca/base/integers.h"

namespace distca {

/// The keys that a query sees: those up to its own position, or all keys of the task.
enum class MaskKind : uint8_t { kCausal, kFull };

struct Mask {
  MaskKind kind = MaskKind::kCausal;
  /// Under a causal mask, a query sees itself and this many keys before it. With -1, it sees all
  /// keys before it.
  int64_t window_left = -1;

  /// Returns true if the mask is causal and a query sees all keys before it. Then the pairs of rows
  /// with their keys are the difference of two triangles.
  bool sees_all_before() const { return kind == MaskKind::kCausal && window_left < 0; }
  /// The mask of a task of this kind, where this is the mask of the attention.
  Mask of_task(MaskKind task) const {
    Mask result = *this;
    result.kind = task;
    return result;
  }

  /// The number of (query, key) pairs of q x kv that the mask allows.
  /// Counts: pairs. Ignores: tile padding, kernel launches, heads (all tasks of a layer have
  /// equally many).
  int64_t pairs(const Range& q, const Range& kv) const {
    if (q.empty() || kv.empty()) return 0;
    return kind == MaskKind::kFull ? q.size() * kv.size() : causal_pairs(q, kv, window_left);
  }
  /// The keys that the queries `q` may see under a causal mask, from a multiple of 128 on.
  Range keys(const Range& q) const;

  bool operator==(const Mask&) const = default;

 private:
  /// Takes the window by value, so that a mask made for one call stays in registers.
  static int64_t causal_pairs(const Range& q, const Range& kv, int64_t window_left);
};

}  // namespace distca
