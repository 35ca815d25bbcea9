// DistCA's attention on the CPU and the loop of multiply-adds that it is compared with, for Python,
// which calls them with ctypes (bench/cpu_attention.py). Thread rule: any thread, each with a pool
// of its own.

#include <cmath>
#include <numeric>
#include <vector>

#include "bench/main.h"
#include "distca/base/clock.h"
#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/cpu/peak.h"
#include "distca/kernels/cpu/thread_pool.h"

namespace distca::kernels {
namespace {

/// Rows are contiguous: q, o, d_o, dq [queries, row_heads, dim], lse and delta [queries,
/// row_heads], k, v, dk, dv [keys, row_kv_heads, dim]; only the first heads and kv_heads of a row
/// are computed. Ranges are `count` rows of six integers: first query row, queries, position of the
/// first query in its document; first key row, keys, position of the first key. Rows that follow
/// each other and have the same first query row are one task. A wrong list is a CHECK, which ends
/// the process.
struct Call {
  int64_t is_bf16, heads, kv_heads, row_heads, row_kv_heads, dim, queries, keys, count;
  const int64_t* ranges;
  void *q, *k, *v, *o, *lse, *d_o, *delta, *dq, *dk, *dv;
};

TaskList list_of(const Call& call) {
  const auto rows = [](void* data, int64_t heads, int64_t dim) {
    return Rows{.data = data, .token_stride = heads * dim, .head_stride = dim};
  };
  const auto of_queries = [&](void* data) { return rows(data, call.row_heads, call.dim); };
  const auto of_keys = [&](void* data) { return rows(data, call.row_kv_heads, call.dim); };
  TaskList list{.queries = {{.tokens = call.queries,
                             .q = of_queries(call.q),
                             .o = of_queries(call.o),
                             .lse = rows(call.lse, call.row_heads, 1),
                             .d_o = of_queries(call.d_o),
                             .delta = rows(call.delta, call.row_heads, 1),
                             .dq = of_queries(call.dq)}},
                .keys = {{.tokens = call.keys,
                          .k = of_keys(call.k),
                          .v = of_keys(call.v),
                          .dk = of_keys(call.dk),
                          .dv = of_keys(call.dv)}}};
  for (const int64_t* range = call.ranges; range < call.ranges + 6 * call.count; range += 6) {
    if (list.tasks.empty() || list.tasks.back().q_row != range[0])
      list.tasks.push_back({.q_row = range[0], .q_tokens = range[1], .q_position = range[2]});
    list.tasks.back().keys.push_back({.row = range[3], .tokens = range[4], .position = range[5]});
  }
  return list;
}

ScalarType type_of(int64_t is_bf16) {
  return is_bf16 != 0 ? ScalarType::kBFloat16 : ScalarType::kFloat32;
}

/// `wall`: for work on several threads. Else processor time of this one: turns of other programs on
/// its core do not count.
template <typename Work>
double seconds_of(int wall, const Work& work) {
  const auto now = wall != 0 ? steady_seconds : thread_processor_seconds;
  const double begin = now();
  work();
  return now() - begin;
}

}  // namespace
}  // namespace distca::kernels

using namespace distca::kernels;

#pragma GCC visibility push(default)
extern "C" {

/// Its threads run on the cores that the calling one may use.
void* thread_pool(int threads) { return new ThreadPool(threads); }

/// The header of a benchmark: `settings` is an object.
void header(const char* bench, const char* settings) {
  distca::bench::write_header(bench, distca::parse_json(settings, "settings"));
}

int available(const char* isa) { return isa_available(*isa_by_name(isa)); }

/// Forward, or backward, which adds to dq, dk and dv. Returns how long the kernel took. Without an
/// `isa` that of the machine, without a pool one thread.
double attention(const Call* call, int backward, const char* isa, ThreadPool* pool, int wall) {
  thread_local ThreadPool one(1);
  ThreadPool& threads = pool != nullptr ? *pool : one;
  const Isa with = isa != nullptr ? *isa_by_name(isa) : chosen_isa();
  const ScalarType type = type_of(call->is_bf16);
  const Shape shape{.num_heads = call->heads,
                    .num_kv_heads = call->kv_heads,
                    .head_dim_qk = call->dim,
                    .head_dim_v = call->dim,
                    .softmax_scale = 1 / std::sqrt(static_cast<double>(call->dim))};
  const TaskList list = list_of(*call);
  return seconds_of(wall, [&] {
    backward != 0 ? cpu_backward(shape, type, list, threads, with)
                  : cpu_forward(shape, type, type, list, threads, with);
  });
}

/// So many bursts of multiply-adds on each thread of the pool. Returns how long they took; `flops`
/// gets their number.
double multiply_adds(const char* isa, int is_bf16, int bursts, ThreadPool* pool, int wall,
                     double* flops) {
  const Isa with = *isa_by_name(isa);
  const ScalarType type = type_of(is_bf16);
  std::vector<double> of_thread(static_cast<size_t>(pool->threads()));
  const double seconds = seconds_of(wall, [&] {
    pool->run(pool->threads(), 0, [&](int64_t item, std::byte*) {
      for (int burst = 0; burst < bursts; ++burst)
        of_thread[static_cast<size_t>(item)] += run_peak_burst(with, type);
    });
  });
  *flops = std::accumulate(of_thread.begin(), of_thread.end(), 0.0);
  return seconds;
}

}  // extern "C"
#pragma GCC visibility pop
