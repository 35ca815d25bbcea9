#include "distca/runtime/task_lists.h"

#include <utility>

namespace distca {
namespace {

/// Some queries of a task.
kernels::Task kernel_task(const ServerTask& task, const Range& queries, const kernels::Mask& mask) {
  kernels::Task result{.query_buffer = task.q.buffer,
                       .q_row = task.q.row + queries.begin,
                       .q_tokens = queries.size(),
                       .q_position = task.q.position + queries.begin,
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

std::vector<TaskPiece> pieces_of(const AttentionExchange& exchange, TaskSet set) {
  std::vector<TaskPiece> pieces;
  for (const int32_t i : exchange.tasks_of(set))
    pieces.push_back({i, {0, exchange.rows.tasks[i].q.tokens}});
  return pieces;
}

TaskLists task_lists(const AttentionExchange& exchange, std::span<const TaskPiece> pieces) {
  TaskLists lists;
  for (const TaskPiece& piece : pieces) {
    const ServerTask& server_task = exchange.rows.tasks[piece.task];
    kernels::Task task = kernel_task(server_task, piece.queries, kernel_mask(exchange.shape.mask));
    lists.backward.tasks.push_back(task);
    if (!server_task.partial) {
      lists.whole.tasks.push_back(std::move(task));
      continue;
    }
    task.query_buffer = static_cast<int64_t>(lists.partial.tasks.size());
    task.q_row = 0;
    lists.partial.tasks.push_back(std::move(task));
    lists.partial_pieces.push_back(piece);
  }
  return lists;
}

}  // namespace distca
