#include "distca/runtime/block_tasks.h"

#include <ATen/ATen.h>

#include <cstddef>

namespace distca {
namespace {

int64_t tokens_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.size(0) : 0; }

}  // namespace

kernels::Rows rows_of(const at::Tensor& tensor, int64_t row) {
  if (!tensor.defined()) return {};
  const int64_t offset = row * tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
  return {.data = static_cast<std::byte*>(tensor.data_ptr()) + offset,
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1)};
}

void add_forward_block(kernels::TaskList& list, const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, const at::Tensor& o, const at::Tensor& lse) {
  list.queries.push_back(
      {.tokens = tokens_of(q), .q = rows_of(q), .o = rows_of(o), .lse = rows_of(lse)});
  list.keys.push_back({.tokens = tokens_of(k), .k = rows_of(k), .v = rows_of(v)});
}

void add_backward_block(kernels::TaskList& list, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, const at::Tensor& d_o, const at::Tensor& lse,
                        const at::Tensor& delta, const at::Tensor& dq, const at::Tensor& dk,
                        const at::Tensor& dv) {
  list.queries.push_back({.tokens = tokens_of(q),
                          .q = rows_of(q),
                          .lse = rows_of(lse),
                          .d_o = rows_of(d_o),
                          .delta = rows_of(delta),
                          .dq = rows_of(dq)});
  list.keys.push_back({.tokens = tokens_of(k),
                       .k = rows_of(k),
                       .v = rows_of(v),
                       .dk = rows_of(dk),
                       .dv = rows_of(dv)});
}

kernels::Task block_task(const ServerTask& task, int64_t window_left) {
  kernels::Task result{.query_buffer = task.q.block,
                       .q_row = task.q.row,
                       .q_tokens = task.q.tokens,
                       .q_position = task.q.position,
                       .mask = {.causal = true, .window_left = window_left}};
  result.keys.reserve(task.kv.size());
  for (const BlockRows& rows : task.kv) {
    result.keys.push_back({rows.block, rows.row, rows.tokens, rows.position});
  }
  return result;
}

}  // namespace distca
