#include "distca/kernels/cpu/attention.h"

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/kernels/cpu/accumulation_order.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/items.h"
#include "distca/kernels/rows.h"
#include "distca/kernels/task_list.h"

namespace distca::kernels {
namespace {

void check_supported(const Shape& shape, ScalarType type) {
  DISTCA_CHECK(cpu_supports(shape, type),
               "the CPU kernel computes fp32 and bf16 with head dims up to {}, not {} and {}",
               kMostHeadDim, shape.head_dim_qk, shape.head_dim_v);
}

/// The tasks of a list as engines want them.
struct EngineList {
  std::vector<KeyFragment> keys;  // one task's after another's
  std::vector<EngineTask> tasks;
};

/// `o_type`: of forward's O; none for backward.
EngineList engine_list(const TaskList& list, ScalarType type, std::optional<ScalarType> o_type) {
  const bool forward = o_type.has_value(), backward = !forward;
  const ScalarType sum = accumulator_type(type);
  const auto rows = [](bool used, const Rows& field, ScalarType scalar, int64_t row) {
    return used ? shifted(field, scalar, row, 0) : Rows{};
  };
  EngineList resolved;
  size_t ranges = 0;
  for (const Task& task : list.tasks) ranges += task.keys.size();
  resolved.keys.reserve(ranges);  // tasks point into it
  resolved.tasks.reserve(list.tasks.size());
  for (const Task& task : list.tasks) {
    const size_t first = resolved.keys.size();
    for (const KeyRange& range : task.keys) {
      if (range.tokens == 0) continue;
      const KeyBuffer& buffer = list.keys[range.buffer];
      resolved.keys.push_back({.k = rows(true, buffer.k, type, range.row),
                               .v = rows(true, buffer.v, type, range.row),
                               .dk = rows(backward, buffer.dk, sum, range.row),
                               .dv = rows(backward, buffer.dv, sum, range.row),
                               .tokens = range.tokens,
                               .position = range.position});
    }
    const QueryBuffer& buffer = list.queries[task.query_buffer];
    resolved.tasks.push_back({.q = rows(true, buffer.q, type, task.q_row),
                              .o = rows(forward, buffer.o, o_type.value_or(type), task.q_row),
                              .lse = rows(true, buffer.lse, sum, task.q_row),
                              .d_o = rows(backward, buffer.d_o, type, task.q_row),
                              .delta = rows(backward, buffer.delta, sum, task.q_row),
                              .dq = rows(backward, buffer.dq, sum, task.q_row),
                              .q_position = task.q_position,
                              .keys = std::span(resolved.keys).subspan(first),
                              .mask = task.mask});
  }
  return resolved;
}

EngineItem engine_item(const Shape& shape, const EngineList& list, const Item& item) {
  return {.shape = &shape,
          .task = &list.tasks[item.task],
          .kv_head = item.kv_head,
          .row_begin = item.row_begin,
          .row_end = item.row_end};
}

/// Reports an item as ended even if it throws: items that wait for it go on.
struct Finish {
  AccumulationOrder& order;
  int64_t item;
  ~Finish() { order.finish(item); }
};

}  // namespace

bool cpu_supports(const Shape& shape, ScalarType type) {
  return (type == ScalarType::kFloat32 || type == ScalarType::kBFloat16) &&
         shape.head_dim_qk <= kMostHeadDim && shape.head_dim_v <= kMostHeadDim;
}

void cpu_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list,
                 ThreadPool& pool, Isa isa) {
  check_forward(shape, type, o_type, list);
  check_supported(shape, type);
  const Engine& engine = engine_of(isa, type);
  const EngineList resolved = engine_list(list, type, o_type);
  std::vector<ForwardItem> work;
  for (const Item& item : cut_evenly(shape, list.tasks, pool.threads())) {
    work.push_back({engine_item(shape, resolved, item), o_type});
  }
  const auto threads = static_cast<size_t>(pool.threads());
  for (size_t i = 0; i + threads < work.size(); ++i) work[i].next = &work[i + threads];
  pool.run(static_cast<int64_t>(work.size()), engine.forward_scratch_bytes(shape),
           [&](int64_t i, std::byte* scratch) { engine.forward(work[i], scratch); });
}

void cpu_backward(const Shape& shape, ScalarType type, const TaskList& list, ThreadPool& pool,
                  Isa isa) {
  cpu_backward(shape, type, list, pool, engine_of(isa, type));
}

void cpu_backward(const Shape& shape, ScalarType type, const TaskList& list, ThreadPool& pool,
                  const Engine& engine) {
  check_backward(shape, list);
  check_supported(shape, type);
  const EngineList resolved = engine_list(list, type, std::nullopt);
  // Not cut by the number of threads: sums over rows would differ.
  std::vector<Item> items = cut_items(shape, list.tasks, 0);
  const auto run = [&](const Item& item, const AccumulationGate& gate, std::byte* scratch) {
    engine.backward({engine_item(shape, resolved, item), gate}, scratch);
  };
  const auto count = static_cast<int64_t>(items.size());
  const size_t scratch_bytes = engine.backward_scratch_bytes(shape);
  if (pool.threads() == 1) {  // in the order of the list nobody waits
    pool.run(count, scratch_bytes,
             [&](int64_t i, std::byte* scratch) { run(items[i], {}, scratch); });
    return;
  }
  AccumulationOrder order(shape, list.tasks, std::move(items));
  pool.run(count, scratch_bytes, [&](int64_t i, std::byte* scratch) {
    const Finish finish{order, i};
    run(order.items()[i], order.gate(i), scratch);
  });
}

}  // namespace distca::kernels
