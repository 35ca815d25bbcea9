#pragma once
// The tasks that a rank has under an exchange, as kernels take them (kernels/attention.h), without
// the rows on which they are computed. It needs no PyTorch. Any thread may call the functions.

#include <span>
#include <vector>

#include "distca/kernels/attention.h"
#include "distca/plan/attention_exchange.h"
#include "distca/plan/attention_parts.h"

namespace distca {

/// Tasks of an exchange, or pieces of them, that are computed at once.
struct TaskLists {
  kernels::TaskList whole;                // forward: tasks whose O and LSE are the rows' own
  kernels::TaskList partial;              // forward: tasks whose O and LSE are parts of merges
  kernels::TaskList backward;             // all tasks
  std::vector<TaskPiece> partial_pieces;  // [partial.tasks]
};
/// The mask of a plan, as kernels take it.
kernels::Mask kernel_mask(const Mask& mask);
/// The tasks of a set, each in one piece.
std::vector<TaskPiece> pieces_of(const AttentionExchange& exchange, TaskSet set);
/// The lists of these tasks. They have no buffers yet.
TaskLists task_lists(const AttentionExchange& exchange, std::span<const TaskPiece> pieces);

}  // namespace distca
