// The order of additions, seen through an engine whose "sums" show it: x <- x * odd + row number.
#include "distca/kernels/cpu/accumulation_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "distca/base/random.h"
#include "distca/kernels/cpu/attention.h"
#include "distca/kernels/mask_parts.h"

namespace distca::kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kDim = 8;

size_t no_scratch(const Shape&) { return 0; }

/// Adds `value` to one head's numbers of `token` so that the order of all additions shows.
void add_in_order(const Rows& rows, int64_t token, int64_t head, uint32_t value) {
  auto* x = static_cast<std::byte*>(rows.data) +
            (token * rows.token_stride + head * rows.head_stride) * 4;
  for (int64_t i = 0; i < kDim; ++i, x += 4) {
    uint32_t word = 0;
    std::memcpy(&word, x, 4);
    word = word * 1'000'003 + value;
    std::memcpy(x, &word, 4);
  }
}

void dawdle(uint64_t seed) {
  Random random(seed);
  const uint64_t kind = random.below(20);
  if (kind == 0) std::this_thread::sleep_for(std::chrono::microseconds(random.below(200)));
  if (kind == 1) std::this_thread::yield();
}

/// Adds in the order of a kernel: to the keys in ascending key tiles, the outer loop, then to dq.
void ordered_backward(const BackwardItem& item, std::byte*) {
  const EngineTask& task = *item.task;
  const int64_t group = item.shape->num_heads / item.shape->num_kv_heads;
  const int64_t first = task.q_position + item.row_begin / group;
  const int64_t last = task.q_position + (item.row_end - 1) / group;
  const auto value = static_cast<uint32_t>(item.row_begin + 17 * task.q_position + item.kv_head);
  for (const KeyFragment& keys : task.keys) {
    const Range all{keys.position, keys.position + keys.tokens};
    const Range seen{visible_keys(task.mask, first, all).begin,
                     visible_keys(task.mask, last, all).end};
    for (int64_t begin = seen.begin; begin < seen.end;) {
      const int64_t end = std::min(seen.end, round_down(begin, kTileKeys) + kTileKeys);
      dawdle(static_cast<uint64_t>(begin * 31 + value));
      if (item.gate.wait != nullptr) item.gate.wait(item.gate.state, end);
      for (int64_t p = begin; p < end; ++p) {
        add_in_order(keys.dk, p - keys.position, item.kv_head, value);
        add_in_order(keys.dv, p - keys.position, item.kv_head, value);
      }
      if (item.gate.done != nullptr) item.gate.done(item.gate.state, end);
      begin = end;
    }
  }
  if (item.gate.wait != nullptr) item.gate.wait(item.gate.state, AccumulationGate::kAll);
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    add_in_order(task.dq, row / group, item.kv_head * group + row % group, value);
  }
}

const Engine kOrderedEngine{.backward_scratch_bytes = no_scratch, .backward = ordered_backward};

/// How gradients of keys lie in memory.
enum class Layout { kTokenMajor, kHeadMajor, kInterleaved };

/// Random documents; each has rows of its own in a query buffer and two key buffers, and tasks that
/// cut and share its queries and keys in many ways.
class Documents {
 public:
  Documents(uint64_t seed, Layout layout) : random_(seed), layout_(layout) {
    const int64_t kv_heads = 1 + below(3);
    shape = {.num_heads = kv_heads * (1 + below(3)),
             .num_kv_heads = kv_heads,
             .head_dim_qk = kDim,
             .head_dim_v = kDim,
             .softmax_scale = 1};
    q_.resize(kTokens * shape.num_heads * kDim);
    k_.resize(kTokens * kv_heads * kDim * 2 * 2);
    for (int64_t begin = 0; begin < kTokens;) {
      const int64_t end = std::min(kTokens, begin + 1 + below(500));
      add_document({begin, end});
      begin = end;
    }
    random_.shuffle(std::span(tasks));
  }

  /// Tasks that add to a document's rows as if they were elsewhere in it.
  void add_strays() {
    for (int i = 0; i < 2; ++i) {
      Range rows{below(kTokens), below(kTokens)};
      if (rows.empty()) std::swap(rows.begin, rows.end);
      add_task({.causal = false}, rows, below(100), {{0, rows}}, below(500));
    }
    random_.shuffle(std::span(tasks));
  }

  /// The gradients' bits after backward.
  std::vector<uint32_t> run(int threads) {
    std::fill(q_.begin(), q_.end(), 1), std::fill(k_.begin(), k_.end(), 1);
    ThreadPool pool(threads);
    cpu_backward(shape, ScalarType::kFloat32, list(), pool, kOrderedEngine);
    std::vector<uint32_t> all = q_;
    all.insert(all.end(), k_.begin(), k_.end());
    return all;
  }

  Shape shape;
  std::vector<Task> tasks;

 private:
  static constexpr int64_t kTokens = 1000;

  int64_t below(int64_t bound) {
    return static_cast<int64_t>(random_.below(static_cast<uint64_t>(bound)));
  }

  void add_document(const Range& rows) {
    const Mask mask{.causal = below(2) == 0,
                    .window_left = below(3) == 0 ? below(200) : -1,
                    .window_right = below(3) == 0 ? below(200) : -1};
    const int64_t tasks_wanted = 1 + below(5);
    for (int64_t i = 0; i < tasks_wanted; ++i) {
      Range queries{rows.begin + below(rows.size()), rows.begin + below(rows.size())};
      if (queries.empty()) std::swap(queries.begin, queries.end);
      std::vector<std::pair<int64_t, Range>> keys;
      for (int64_t begin = rows.begin + below(rows.size()); begin < rows.end;) {
        const int64_t end = std::min(rows.end, begin + 1 + below(200));
        keys.emplace_back(below(2), Range{begin, end});
        begin = end + (below(2) == 0 ? 0 : below(100));
      }
      add_task(mask, queries, queries.begin - rows.begin, keys, -rows.begin);
    }
  }

  /// `keys`: rows of a buffer; their positions are `shift` more.
  void add_task(const Mask& mask, const Range& queries, int64_t q_position,
                const std::vector<std::pair<int64_t, Range>>& keys, int64_t shift) {
    Task& task = tasks.emplace_back(Task{.q_row = queries.begin,
                                         .q_tokens = queries.size(),
                                         .q_position = q_position,
                                         .mask = mask});
    for (const auto& [buffer, rows] : keys) {
      task.keys.push_back({buffer, rows.begin, rows.size(), rows.begin + shift});
    }
  }

  TaskList list() {
    const Rows q{q_.data(), shape.num_heads * kDim, kDim};
    const Rows numbers{q_.data(), shape.num_heads, 1};
    TaskList list{
        .queries =
            {{.tokens = kTokens, .q = q, .lse = numbers, .d_o = q, .delta = numbers, .dq = q}},
        .tasks = tasks};
    for (const int64_t buffer : {0, 1}) {
      const Rows dk = key_rows(buffer, 0), dv = key_rows(buffer, 1);
      list.keys.push_back({.tokens = kTokens, .k = dk, .v = dv, .dk = dk, .dv = dv});
    }
    return list;
  }

  Rows key_rows(int64_t buffer, int64_t which) {
    const int64_t heads = shape.num_kv_heads;
    uint32_t* data = k_.data() + buffer * 2 * kTokens * heads * kDim;
    switch (layout_) {
      case Layout::kHeadMajor:
        return {data + which * heads * kTokens * kDim, kDim, kTokens * kDim};
      case Layout::kInterleaved:
        return {data + which * heads * kDim, 2 * heads * kDim, kDim};
      case Layout::kTokenMajor:
        break;
    }
    return {data + which * kTokens * heads * kDim, heads * kDim, kDim};
  }

  Random random_;
  Layout layout_;
  std::vector<uint32_t> q_, k_;
};

/// Task with rows [q, q + q_tokens) of query buffer 0 and rows [k, k + k_tokens) of a key buffer,
/// at position k + shift.
Task task_on(int64_t q, int64_t q_tokens, int64_t buffer, int64_t k, int64_t k_tokens,
             int64_t shift = 0) {
  return {.q_row = q, .q_tokens = q_tokens, .keys = {{buffer, k, k_tokens, k + shift}}};
}

TEST(SharedRowsTest, tasks_that_share_nothing_stay_apart) {
  // Tasks 3 and 4 are on the same rows of other buffers, task 5 has no rows.
  std::vector<Task> tasks{task_on(0, 100, 0, 0, 50),    task_on(100, 100, 0, 50, 50),
                          task_on(200, 50, 0, 100, 50), task_on(250, 50, 1, 0, 50),
                          task_on(0, 100, 2, 0, 50),    task_on(50, 0, 0, 20, 0)};
  tasks[4].query_buffer = 1;
  const SharedRows shared = find_shared_rows(tasks);
  EXPECT_THAT(shared.keys, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(shared.queries, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(shared.families, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_TRUE(find_shared_rows({}).keys.empty());
}

TEST(SharedRowsTest, shared_keys_connect_tasks_whatever_their_order_in_the_list) {
  std::vector<Task> tasks{task_on(0, 10, 0, 0, 60), task_on(10, 10, 0, 200, 50),
                          task_on(20, 10, 0, 90, 30), task_on(30, 10, 0, 50, 50),
                          task_on(40, 10, 1, 0, 9)};
  tasks[2].keys.push_back({1, 8, 1, 300});  // task 3 meets tasks 0 and 2, this one task 4
  const SharedRows shared = find_shared_rows(tasks);
  EXPECT_THAT(shared.keys, ElementsAre(0, 1, 0, 0, 0));
  EXPECT_THAT(shared.queries, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(shared.families, ElementsAre(0, 1, 0, 0, 0));
}

TEST(SharedRowsTest, shared_queries_connect_tasks_with_different_keys) {
  const std::vector<Task> tasks{task_on(0, 100, 0, 0, 50), task_on(50, 100, 0, 50, 50),
                                task_on(150, 10, 0, 100, 50)};
  const SharedRows shared = find_shared_rows(tasks);
  EXPECT_THAT(shared.keys, ElementsAre(0, 1, 2));
  EXPECT_THAT(shared.queries, ElementsAre(0, 0, 2));
  EXPECT_THAT(shared.families, ElementsAre(0, 0, 2));
  EXPECT_THAT(shared.shifted, Each(false));
}

TEST(SharedRowsTest, rows_at_several_positions_are_told) {
  const std::vector<Task> tasks{task_on(0, 10, 0, 0, 60), task_on(10, 10, 0, 100, 60),
                                task_on(20, 10, 0, 130, 60, /*shift=*/-130)};
  const SharedRows shared = find_shared_rows(tasks);
  EXPECT_THAT(shared.keys, ElementsAre(0, 1, 1));
  EXPECT_THAT(shared.shifted, ElementsAre(false, true, false));
}

class AccumulationOrderLayoutTest : public ::testing::TestWithParam<Layout> {};

TEST_P(AccumulationOrderLayoutTest,
       tasks_add_in_the_order_of_the_list_for_every_number_of_threads) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Documents batch(seed, GetParam());
    const std::vector<uint32_t> expected = batch.run(1);
    for (const int threads : {2, 3, 4}) {
      ASSERT_EQ(batch.run(threads), expected) << "seed " << seed << ", " << threads << " threads";
    }
  }
}

TEST_P(AccumulationOrderLayoutTest, so_do_tasks_that_give_rows_other_positions) {
  for (uint64_t seed = 100; seed < 120; ++seed) {
    Documents batch(seed, GetParam());
    batch.add_strays();
    const std::vector<uint32_t> expected = batch.run(1);
    for (const int threads : {2, 4}) {
      ASSERT_EQ(batch.run(threads), expected) << "seed " << seed << ", " << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(layouts, AccumulationOrderLayoutTest,
                         ::testing::Values(Layout::kTokenMajor, Layout::kHeadMajor,
                                           Layout::kInterleaved));

TEST(AccumulationOrderTest, another_order_of_the_list_gives_other_sums_here) {
  int others = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Documents batch(seed, Layout::kTokenMajor);
    const std::vector<uint32_t> expected = batch.run(1);
    std::reverse(batch.tasks.begin(), batch.tasks.end());
    others += batch.run(1) != expected;
  }
  EXPECT_GE(others, 30);
}

/// A document of two items, the second with a thread of its own.
struct TwoItems {
  std::vector<float> dq, dk, dv;
  TaskList list;

  TwoItems() : dq(kTokens * kDim), dk(dq.size()), dv(dq.size()) {
    const auto rows = [](std::vector<float>& data) { return Rows{data.data(), kDim, kDim}; };
    const Rows q = rows(dq);
    list.queries = {{.tokens = kTokens, .q = q, .lse = q, .d_o = q, .delta = q, .dq = q}};
    list.keys = {{.tokens = kTokens, .k = rows(dk), .v = rows(dv), .dk = rows(dk), .dv = rows(dv)}};
    list.tasks = {{.q_tokens = kTokens, .keys = {{.tokens = kTokens}}, .mask = {.causal = false}}};
  }
  void run(void (*backward)(const BackwardItem&, std::byte*)) {
    const Engine engine{.backward_scratch_bytes = no_scratch, .backward = backward};
    const Shape shape{.num_heads = 1, .num_kv_heads = 1, .head_dim_qk = kDim, .head_dim_v = kDim};
    ThreadPool pool(2);
    cpu_backward(shape, ScalarType::kFloat32, list, pool, engine);
  }
  static constexpr int64_t kTokens = 2 * kTileRows;
};

std::atomic<bool> second_has_begun_to_add, first_has_ended;

void wait_at_most(double seconds, const std::atomic<bool>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

/// The first item adds to one key tile and lingers, until the second begins to add or for a time.
template <int kMilliseconds>
void linger_after_first_tile(const BackwardItem& item, std::byte*) {
  if (item.row_begin == 0) {
    item.gate.done(item.gate.state, kTileKeys);
    wait_at_most(kMilliseconds * 1e-3, second_has_begun_to_add);
    EXPECT_FALSE(first_has_ended);
    EXPECT_EQ(second_has_begun_to_add, kMilliseconds > 1000);
    first_has_ended = true;
  } else {
    item.gate.wait(item.gate.state, kTileKeys);
    EXPECT_EQ(first_has_ended, kMilliseconds < 1000);
    second_has_begun_to_add = true;
  }
}

TEST(AccumulationOrderTest, an_item_adds_to_keys_that_its_running_predecessor_has_left) {
  second_has_begun_to_add = first_has_ended = false;
  TwoItems items;
  items.run(linger_after_first_tile<200'000>);
  EXPECT_TRUE(second_has_begun_to_add);
}

TEST(AccumulationOrderTest, items_that_give_a_row_two_positions_add_one_after_the_other) {
  second_has_begun_to_add = first_has_ended = false;
  TwoItems items;
  items.list.tasks[0].keys.push_back({.row = 7, .tokens = 1, .position = 2 * items.kTokens});
  items.run(linger_after_first_tile<30>);
  EXPECT_TRUE(second_has_begun_to_add);
}

void throw_while_others_wait(const BackwardItem& item, std::byte*) {
  if (item.row_begin == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    throw std::runtime_error("first item");
  }
  item.gate.wait(item.gate.state, kTileKeys);
}

TEST(AccumulationOrderTest, an_item_that_throws_holds_nobody_up) {
  TwoItems items;
  EXPECT_THROW(items.run(throw_while_others_wait), std::runtime_error);
}

}  // namespace
}  // namespace distca::kernels
