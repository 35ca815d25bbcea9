#pragma once
// Parts of varlen_launches: tasks cut to what FlashAttention's masks express, and the buffers that
// the parts' keys lie in. Thread rule: pure functions.

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "distca/kernels/varlen_launches.h"

namespace distca::kernels {

/// Queries of one task against keys that end where the launch's mask wants them to. Every query
/// sees at least one key, every key is seen by some query.
struct VarlenPart {
  size_t task = 0;
  Range queries;  // positions in the document
  Range keys;     // positions in the document
  bool right_limited = false;
  int64_t window_left = -1;  // from the aligned end, -1 = unlimited
  int64_t first_key = 0;     // the task's first key, seen or not
  size_t buffer = 0;         // set by place_keys
  int64_t row = 0;           // of keys.begin in the buffer; set by place_keys
};

/// Every visible (query, key) pair exactly once, every row in at most one part; parts in the order
/// of tasks. The tasks' keys are consecutive (a CHECK).
std::vector<VarlenPart> cut_tasks(std::span<const VarlenTask> tasks);

/// Finds the parts' keys, sets their buffer and row. `over_gaps`: whether keys with others between
/// them may be one buffer. Buffers are in the order in which parts first use them.
std::vector<KeyBuffer> place_keys(ScalarType type, std::span<const VarlenTask> tasks,
                                  std::vector<VarlenPart>& parts, bool over_gaps);

/// Where gradients of the keys at `keys` are added to; `to`: of the first of them.
struct GradientRun {
  KeyGradient to;
  Range keys;
  bool operator==(const GradientRun& other) const;
};

/// The gradients of some of the task's keys, in as few runs as their memory allows.
std::vector<GradientRun> key_gradients(ScalarType type, const VarlenTask& task, const Range& keys);

}  // namespace distca::kernels
