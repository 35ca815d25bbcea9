#include "distca/kernels/cpu/run_items.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/cpu/items.h"
#include "distca/kernels/cpu/turns.h"
#include "distca/kernels/rows.h"

namespace distca::kernels {
namespace {

void check_supported(const Shape& shape, ScalarType type) {
  check_shape(shape);
  DISTCA_CHECK(cpu_supports(shape, type),
               "the CPU kernel computes fp32 and bf16 with head dims up to {}, not {} and {}",
               kMostHeadDim, shape.head_dim_qk, shape.head_dim_v);
}

/// Tasks as engines want them: keys ascend in position and no fragment is empty, and rows of
/// numbers have their head stride.
struct EngineTask {
  std::vector<KeyFragment> keys;
  std::vector<KeyGradient> gradients;

  /// Whether the task's own fragments are not as engines want them; then `keys` are.
  bool sort(std::span<const KeyFragment> given, std::span<const KeyGradient> given_gradients) {
    bool right = true;
    for (size_t i = 0; i < given.size(); ++i) {
      right = right && given[i].tokens > 0 && (i == 0 || given[i - 1].position < given[i].position);
    }
    if (right) return false;
    std::vector<size_t> order;
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i].tokens > 0) order.push_back(i);
    }
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return given[a].position < given[b].position; });
    for (const size_t i : order) {
      keys.push_back(given[i]);
      if (!given_gradients.empty()) gradients.push_back(given_gradients[i]);
    }
    return true;
  }
};

template <typename Task>
std::vector<TaskExtent> extents(const std::vector<Task>& tasks) {
  std::vector<TaskExtent> result;
  result.reserve(tasks.size());
  for (const Task& task : tasks) {
    result.push_back({.q_tokens = task.q_tokens,
                      .q_position = task.q_position,
                      .keys = task.keys,
                      .mask = task.mask});
  }
  return result;
}

/// Reports an item as ended even if it throws: items that wait for it go on.
struct Finish {
  Turns& turns;
  int64_t item;
  ~Finish() { turns.finish(item); }
};

}  // namespace

bool cpu_supports(const Shape& shape, ScalarType type) {
  return (type == ScalarType::kFloat32 || type == ScalarType::kBFloat16) &&
         shape.head_dim_qk <= kMostHeadDim && shape.head_dim_v <= kMostHeadDim;
}

void run_forward(const Engine& engine, const Shape& shape, ScalarType type, ScalarType o_type,
                 std::span<const ForwardTask> tasks, ThreadPool& pool) {
  check_supported(shape, type);
  std::vector<ForwardTask> prepared(tasks.begin(), tasks.end());
  std::vector<EngineTask> sorted(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    ForwardTask& task = prepared[i];
    check_task(shape, type, o_type, task);
    task.lse = number_rows(task.lse);
    if (sorted[i].sort(task.keys, {})) task.keys = sorted[i].keys;
  }
  const std::vector<Item> items = cut_evenly(shape, extents(prepared), pool.threads());
  std::vector<ForwardItem> work;
  work.reserve(items.size());
  for (const Item& item : items) {
    work.push_back({.shape = &shape,
                    .type = type,
                    .o_type = o_type,
                    .task = &prepared[item.task],
                    .kv_head = item.kv_head,
                    .row_begin = item.row_begin,
                    .row_end = item.row_end});
  }
  const auto threads = static_cast<size_t>(pool.threads());
  for (size_t i = 0; i + threads < work.size(); ++i) work[i].next = &work[i + threads];
  pool.run(static_cast<int64_t>(work.size()), engine.forward_scratch_bytes(shape, type),
           [&](int64_t i, std::byte* scratch) { engine.forward(work[i], scratch); });
}

void run_backward(const Engine& engine, const Shape& shape, ScalarType type,
                  std::span<const BackwardTask> tasks, ThreadPool& pool) {
  check_supported(shape, type);
  std::vector<BackwardTask> prepared(tasks.begin(), tasks.end());
  std::vector<EngineTask> sorted(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    BackwardTask& task = prepared[i];
    check_task(shape, type, task);
    task.lse = number_rows(task.lse);
    task.delta = number_rows(task.delta);
    if (!sorted[i].sort(task.keys, task.key_gradients)) continue;
    task.keys = sorted[i].keys;
    task.key_gradients = sorted[i].gradients;
  }
  // Not cut by the number of threads: sums over rows would differ.
  std::vector<Item> items = cut_items(shape, extents(prepared), 0);
  const auto run = [&](const Item& item, const Turn& turn, std::byte* scratch) {
    engine.backward({.shape = &shape,
                     .type = type,
                     .task = &prepared[item.task],
                     .kv_head = item.kv_head,
                     .row_begin = item.row_begin,
                     .row_end = item.row_end,
                     .turn = turn},
                    scratch);
  };
  const auto count = static_cast<int64_t>(items.size());
  const size_t scratch_bytes = engine.backward_scratch_bytes(shape, type);
  if (pool.threads() == 1) {  // in the order of the list nobody waits
    pool.run(count, scratch_bytes,
             [&](int64_t i, std::byte* scratch) { run(items[i], {}, scratch); });
    return;
  }
  Turns turns(shape, prepared, std::move(items));
  pool.run(count, scratch_bytes, [&](int64_t i, std::byte* scratch) {
    const Finish finish{turns, i};
    run(turns.items()[i], turns.turn(i), scratch);
  });
}

}  // namespace distca::kernels
