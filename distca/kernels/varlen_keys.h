#pragma once
// Two steps of varlen_launches.cc: cutting tasks into parts that FlashAttention's masks can
// express, and finding the rows in which the keys of these parts lie. Thread rule: pure functions.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "distca/kernels/varlen_launches.h"

namespace distca::kernels {

/// Rows that FlashAttention counts.
inline constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();

/// Consecutive queries of one task, and keys that end where the mask of the launch needs them to
/// end. Every query sees at least one key, and every key is seen by some query.
struct VarlenPart {
  size_t task = 0;             // index in the list
  Range queries;               // positions in the document
  Range keys;                  // positions in the document
  bool right_limited = false;  // value of VarlenLaunch::right_limited
  int64_t window_left = -1;    // tokens before the aligned key. -1 means no limit.
  int64_t first_key = 0;       // position of the task's first key, whether it is seen or not
  // place_keys sets what follows.
  int64_t buffer = 0;  // value of VarlenLaunch::buffer
  int64_t row = 0;     // row of keys.begin in the buffer
  /// Parts of the same region may share a launch. A region has the number of its first part.
  size_t region = 0;
};

/// Cuts tasks into parts, in the order of the tasks. Every visible (query, key) pair is in exactly
/// one part, and every row in at most one. The keys of a task must be consecutive (a CHECK).
std::vector<VarlenPart> cut_tasks(std::span<const Task> tasks);

/// Finds the keys of the parts. Keys that must be gathered are added to the plan; they are the last
/// region. `over_gaps` says whether keys with other keys between them may be one region.
void place_keys(ScalarType type, const TaskList& list, std::vector<VarlenPart>& parts,
                bool over_gaps, VarlenPlan& plan);

/// The keys of a task at positions `keys`, in as few ranges as their rows allow.
std::vector<KeyRange> key_ranges(const Task& task, const Range& keys);

}  // namespace distca::kernels
