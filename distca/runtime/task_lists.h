#pragma once
// The tasks that a rank has under an exchange, as kernels take them (kernels/attention.h), without
// the rows on which they are computed. It needs no PyTorch. Any thread may call the functions.

#include <array>
#include <cstdint>
#include <vector>

#include "distca/kernels/attention.h"
#include "distca/plan/attention_exchange.h"

namespace distca {

/// The tasks of one set of an exchange.
struct TaskLists {
  kernels::TaskList whole;             // forward: tasks whose O and LSE are the rows' own
  kernels::TaskList partial;           // forward: tasks whose O and LSE are parts of merges
  kernels::TaskList backward;          // all tasks
  std::vector<int32_t> partial_tasks;  // [partial.tasks] the index in rows.tasks
};
/// The mask of a plan, as kernels take it.
kernels::Mask kernel_mask(const Mask& mask);
/// [TaskSet] The lists of an exchange. They have no buffers yet.
std::array<TaskLists, kNumTaskSets> task_lists(const AttentionExchange& exchange);

}  // namespace distca
