#pragma once
// Parts of varlen_launches: tasks cut to what FlashAttention's masks express, and the rows that the
// parts' keys lie in. Thread rule: pure functions.

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
  // Set by place_keys.
  int64_t buffer = 0;  // as VarlenLaunch::buffer
  int64_t row = 0;     // of keys.begin in the buffer
  size_t region = 0;   // parts of one region may share a launch; the number of its first part
};

/// Every visible (query, key) pair exactly once, every row in at most one part; parts in the order
/// of tasks. The tasks' keys are consecutive (a CHECK).
std::vector<VarlenPart> cut_tasks(std::span<const Task> tasks);

/// Finds the parts' keys and adds to the plan what is gathered for them, which is the last region.
/// `over_gaps`: whether keys with others between them may be one region.
void place_keys(ScalarType type, const TaskList& list, std::vector<VarlenPart>& parts,
                bool over_gaps, VarlenPlan& plan);

/// The task's keys at positions `keys`, in as few ranges as their rows allow.
std::vector<KeyRange> key_ranges(const Task& task, const Range& keys);

}  // namespace distca::kernels
