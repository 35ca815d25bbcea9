#include "distca/runtime/task_lists.h"

#include <utility>

namespace distca {
namespace {

kernels::Task kernel_task(const ServerTask& task, const kernels::Mask& mask) {
  kernels::Task result{.query_buffer = task.q.buffer,
                       .q_row = task.q.row,
                       .q_tokens = task.q.tokens,
                       .q_position = task.q.position,
                       .mask = mask};
  result.keys.reserve(task.kv.size());
  for (const BufferRows& rows : task.kv) {
    result.keys.push_back({rows.buffer, rows.row, rows.tokens, rows.position});
  }
  return result;
}

}  // namespace

kernels::Mask kernel_mask(const Mask& mask) {
  return {.causal = mask.kind == MaskKind::kCausal, .window_left = mask.window_left};
}

std::array<TaskLists, kNumTaskSets> task_lists(const AttentionExchange& exchange) {
  const kernels::Mask mask = kernel_mask(exchange.shape.mask);
  std::array<TaskLists, kNumTaskSets> result;
  for (size_t set = 0; set < kNumTaskSets; ++set) {
    auto& [whole, partial, backward, partial_tasks] = result[set];
    for (const int32_t i : exchange.tasks[set]) {
      const ServerTask& server_task = exchange.rows.tasks[i];
      kernels::Task task = kernel_task(server_task, mask);
      backward.tasks.push_back(task);
      if (!server_task.partial) {
        whole.tasks.push_back(std::move(task));
        continue;
      }
      task.query_buffer = static_cast<int64_t>(partial.tasks.size());
      task.q_row = 0;
      partial.tasks.push_back(std::move(task));
      partial_tasks.push_back(i);
    }
  }
  return result;
}

}  // namespace distca
