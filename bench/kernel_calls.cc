// DistCA's attention on the CPU for bench/context_rivals.py, which calls it with ctypes: the rivals
// compute with the same kernel as we do. fp32, one thread. Rows are contiguous: q, o, d_o, dq
// [queries, heads, dim], lse and delta [queries, heads], k, v, dk, dv [keys, kv_heads, dim].
//
// Ranges are `count` rows of six integers: first query row, queries, position of the first query in
// its document; first key row, keys, position of the first key. Rows that follow each other and
// have the same first query row are one task.
//
// A wrong list is a CHECK, which ends the process. Thread rule: any thread, each with a pool of its
// own.

#include <cstdint>

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/cpu/thread_pool.h"

namespace distca::kernels {
namespace {

struct Call {
  int64_t heads, kv_heads, dim;
  double softmax_scale;
  int64_t queries, keys;
  int64_t count;
  const int64_t* ranges;
};

Shape shape_of(const Call& call) {
  return {.num_heads = call.heads,
          .num_kv_heads = call.kv_heads,
          .head_dim_qk = call.dim,
          .head_dim_v = call.dim,
          .softmax_scale = call.softmax_scale};
}

Rows rows(const float* data, int64_t heads, int64_t dim) {
  return {.data = const_cast<float*>(data), .token_stride = heads * dim, .head_stride = dim};
}

std::vector<Task> tasks_of(const Call& call) {
  std::vector<Task> tasks;
  for (int64_t i = 0; i < call.count; ++i) {
    const int64_t* range = call.ranges + 6 * i;
    if (tasks.empty() || tasks.back().q_row != range[0])
      tasks.push_back({.q_row = range[0], .q_tokens = range[1], .q_position = range[2]});
    tasks.back().keys.push_back({.row = range[3], .tokens = range[4], .position = range[5]});
  }
  return tasks;
}

ThreadPool& pool() {
  thread_local ThreadPool one(1);
  return one;
}

}  // namespace
}  // namespace distca::kernels

using distca::kernels::Call;
using distca::kernels::rows;

extern "C" __attribute__((visibility("default"))) void attention_forward(
    const Call* call, const float* q, const float* k, const float* v, float* o, float* lse) {
  using namespace distca::kernels;
  TaskList list{.tasks = tasks_of(*call)};
  list.queries = {{.tokens = call->queries,
                   .q = rows(q, call->heads, call->dim),
                   .o = rows(o, call->heads, call->dim),
                   .lse = rows(lse, call->heads, 1)}};
  list.keys = {{.tokens = call->keys,
                .k = rows(k, call->kv_heads, call->dim),
                .v = rows(v, call->kv_heads, call->dim)}};
  cpu_forward(shape_of(*call), ScalarType::kFloat32, ScalarType::kFloat32, list, pool());
}

/// Adds to dq, dk and dv.
extern "C" __attribute__((visibility("default"))) void attention_backward(
    const Call* call, const float* q, const float* k, const float* v, const float* lse,
    const float* d_o, const float* delta, float* dq, float* dk, float* dv) {
  using namespace distca::kernels;
  TaskList list{.tasks = tasks_of(*call)};
  list.queries = {{.tokens = call->queries,
                   .q = rows(q, call->heads, call->dim),
                   .lse = rows(lse, call->heads, 1),
                   .d_o = rows(d_o, call->heads, call->dim),
                   .delta = rows(delta, call->heads, 1),
                   .dq = rows(dq, call->heads, call->dim)}};
  list.keys = {{.tokens = call->keys,
                .k = rows(k, call->kv_heads, call->dim),
                .v = rows(v, call->kv_heads, call->dim),
                .dk = rows(dk, call->kv_heads, call->dim),
                .dv = rows(dv, call->kv_heads, call->dim)}};
  cpu_backward(shape_of(*call), ScalarType::kFloat32, list, pool());
}
