// The order of additions, seen through an engine whose "sums" show it: x <- x * odd + row number.
#include "distca/kernels/cpu/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <stdexcept>
#include <thread>

#include "distca/base/random.h"
#include "distca/kernels/cpu/run_items.h"
#include "distca/kernels/mask_blocks.h"

namespace distca::kernels {
namespace {

constexpr int64_t kDim = 8;

size_t no_scratch(const Shape&, ScalarType) { return 0; }

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

/// As a kernel does: keys outside in blocks, ascending, then dq.
void ordered_backward(const BackwardItem& item, std::byte*) {
  const BackwardTask& task = *item.task;
  const int64_t group = item.shape->num_heads / item.shape->num_kv_heads;
  const int64_t first = task.q_position + item.row_begin / group;
  const int64_t last = task.q_position + (item.row_end - 1) / group;
  const auto value = static_cast<uint32_t>(item.row_begin + 17 * task.q_position + item.kv_head);
  for (size_t f = 0; f < task.keys.size(); ++f) {
    const KeyFragment& keys = task.keys[f];
    const Range all{keys.position, keys.position + keys.tokens};
    const Range seen{visible_keys(task.mask, first, all).begin,
                     visible_keys(task.mask, last, all).end};
    for (int64_t begin = seen.begin; begin < seen.end;) {
      const int64_t end = std::min(seen.end, round_down(begin, kBlockKeys) + kBlockKeys);
      dawdle(static_cast<uint64_t>(begin * 31 + value));
      if (item.turn.wait != nullptr) item.turn.wait(item.turn.state, end);
      for (int64_t p = begin; p < end; ++p) {
        add_in_order(task.key_gradients[f].dk, p - keys.position, item.kv_head, value);
        add_in_order(task.key_gradients[f].dv, p - keys.position, item.kv_head, value);
      }
      if (item.turn.done != nullptr) item.turn.done(item.turn.state, end);
      begin = end;
    }
  }
  if (item.turn.wait != nullptr) item.turn.wait(item.turn.state, Turn::kAll);
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    add_in_order(task.dq, row / group, item.kv_head * group + row % group, value);
  }
}

const Engine kOrderedEngine{.backward_scratch_bytes = no_scratch, .backward = ordered_backward};

/// How gradients of keys lie in memory.
enum class Layout { kTokenMajor, kHeadMajor, kInterleaved };

/// Random documents; each has rows of its own in shared buffers of gradients, and tasks that cut
/// and share its queries and keys in many ways.
class Batch {
 public:
  Batch(uint64_t seed, Layout layout) : random_(seed), layout_(layout) {
    const int64_t kv_heads = 1 + below(3);
    shape = {.num_heads = kv_heads * (1 + below(3)),
             .num_kv_heads = kv_heads,
             .head_dim_qk = kDim,
             .head_dim_v = kDim,
             .softmax_scale = 1};
    q_.resize(kTokens * shape.num_heads * kDim);
    k_.resize(kTokens * kv_heads * kDim * 2);
    for (int64_t begin = 0; begin < kTokens;) {
      const int64_t end = std::min(kTokens, begin + 1 + below(500));
      add_document({begin, end});
      begin = end;
    }
    random_.shuffle(std::span(tasks));
  }

  /// Tasks that write a document's rows as if they were elsewhere in it.
  void add_strays() {
    for (int i = 0; i < 2; ++i) {
      Range rows{below(kTokens), below(kTokens)};
      if (rows.empty()) std::swap(rows.begin, rows.end);
      add_task({}, rows, below(100), {rows}, below(100));
    }
  }

  /// The gradients' bits after backward.
  std::vector<uint32_t> run(int threads) {
    std::fill(q_.begin(), q_.end(), 1), std::fill(k_.begin(), k_.end(), 1);
    ThreadPool pool(threads);
    run_backward(kOrderedEngine, shape, ScalarType::kFloat32, tasks, pool);
    std::vector<uint32_t> all = q_;
    all.insert(all.end(), k_.begin(), k_.end());
    return all;
  }

  Shape shape;
  std::vector<BackwardTask> tasks;

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
      std::vector<Range> keys;
      for (int64_t begin = rows.begin + below(rows.size()); begin < rows.end;) {
        const int64_t end = std::min(rows.end, begin + 1 + below(200));
        keys.push_back({begin, end});
        begin = end + (below(2) == 0 ? 0 : below(100));
      }
      if (below(4) == 0) random_.shuffle(std::span(keys));
      add_task(mask, queries, queries.begin - rows.begin, keys, -rows.begin);
    }
  }

  /// `keys`: rows of the buffer; their positions are `shift` more.
  void add_task(const Mask& mask, const Range& queries, int64_t q_position,
                const std::vector<Range>& keys, int64_t shift) {
    auto& fragments = fragments_.emplace_back();
    auto& gradients = gradients_.emplace_back();
    for (const Range& rows : keys) {
      const Rows dk = key_rows(rows.begin, 0), dv = key_rows(rows.begin, 1);
      fragments.push_back({dk, dv, rows.size(), rows.begin + shift});
      gradients.push_back({dk, dv});
    }
    const Rows q{q_.data() + queries.begin * shape.num_heads * kDim, shape.num_heads * kDim, kDim};
    const Rows numbers{q_.data(), shape.num_heads, 1};
    tasks.push_back({.q = q,
                     .d_o = q,
                     .lse = numbers,
                     .delta = numbers,
                     .dq = q,
                     .q_tokens = queries.size(),
                     .q_position = q_position,
                     .keys = fragments,
                     .key_gradients = gradients,
                     .mask = mask});
  }

  Rows key_rows(int64_t row, int64_t which) {
    const int64_t heads = shape.num_kv_heads;
    switch (layout_) {
      case Layout::kHeadMajor:
        return {k_.data() + (which * heads * kTokens + row) * kDim, kDim, kTokens * kDim};
      case Layout::kInterleaved:
        return {k_.data() + (row * 2 + which) * heads * kDim, 2 * heads * kDim, kDim};
      case Layout::kTokenMajor:
        break;
    }
    return {k_.data() + (which * kTokens + row) * heads * kDim, heads * kDim, kDim};
  }

  Random random_;
  Layout layout_;
  std::vector<uint32_t> q_, k_;
  std::list<std::vector<KeyFragment>> fragments_;
  std::list<std::vector<KeyGradient>> gradients_;
};

class TurnsLayoutTest : public ::testing::TestWithParam<Layout> {};

TEST_P(TurnsLayoutTest, tasks_add_in_the_order_of_the_list_for_every_number_of_threads) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Batch batch(seed, GetParam());
    const std::vector<uint32_t> expected = batch.run(1);
    for (const int threads : {2, 3, 4}) {
      ASSERT_EQ(batch.run(threads), expected) << "seed " << seed << ", " << threads << " threads";
    }
  }
}

TEST_P(TurnsLayoutTest, so_do_tasks_that_share_memory_in_different_ways) {
  for (uint64_t seed = 100; seed < 120; ++seed) {
    Batch batch(seed, GetParam());
    batch.add_strays();
    const std::vector<uint32_t> expected = batch.run(1);
    for (const int threads : {2, 4}) {
      ASSERT_EQ(batch.run(threads), expected) << "seed " << seed << ", " << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(layouts, TurnsLayoutTest,
                         ::testing::Values(Layout::kTokenMajor, Layout::kHeadMajor,
                                           Layout::kInterleaved));

TEST(TurnsTest, another_order_of_the_list_gives_other_sums_here) {
  int others = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Batch batch(seed, Layout::kTokenMajor);
    const std::vector<uint32_t> expected = batch.run(1);
    std::reverse(batch.tasks.begin(), batch.tasks.end());
    others += batch.run(1) != expected;
  }
  EXPECT_GE(others, 30);
}

/// A document of two items, the second with a thread of its own.
struct TwoItems {
  std::vector<float> dq, dk, dv;
  KeyFragment fragment;
  KeyGradient gradient;
  BackwardTask task;

  TwoItems() : dq(kTokens * kDim), dk(dq.size()), dv(dq.size()) {
    const auto rows = [](std::vector<float>& data) { return Rows{data.data(), kDim, kDim}; };
    fragment = {rows(dk), rows(dv), kTokens, 0};
    gradient = {rows(dk), rows(dv)};
    task = {.q = rows(dq),
            .d_o = rows(dq),
            .lse = rows(dq),
            .delta = rows(dq),
            .dq = rows(dq),
            .q_tokens = kTokens,
            .keys = {&fragment, 1},
            .key_gradients = {&gradient, 1},
            .mask = {.causal = false}};
  }
  void run(void (*backward)(const BackwardItem&, std::byte*)) {
    const Engine engine{.backward_scratch_bytes = no_scratch, .backward = backward};
    const Shape shape{.num_heads = 1, .num_kv_heads = 1, .head_dim_qk = kDim, .head_dim_v = kDim};
    ThreadPool pool(2);
    run_backward(engine, shape, ScalarType::kFloat32, {&task, 1}, pool);
  }
  static constexpr int64_t kTokens = 2 * kTileRows;
};

std::atomic<bool> second_has_begun_to_add, first_has_ended;

void wait_at_most(double seconds, const std::atomic<bool>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

/// The first item adds to one block and lingers, until the second begins to add or for a time.
template <int kMilliseconds>
void linger_after_first_block(const BackwardItem& item, std::byte*) {
  if (item.row_begin == 0) {
    item.turn.done(item.turn.state, kBlockKeys);
    wait_at_most(kMilliseconds * 1e-3, second_has_begun_to_add);
    EXPECT_FALSE(first_has_ended);
    EXPECT_EQ(second_has_begun_to_add, kMilliseconds > 1000);
    first_has_ended = true;
  } else {
    item.turn.wait(item.turn.state, kBlockKeys);
    EXPECT_EQ(first_has_ended, kMilliseconds < 1000);
    second_has_begun_to_add = true;
  }
}

TEST(TurnsTest, an_item_adds_to_keys_that_its_running_predecessor_has_left) {
  second_has_begun_to_add = first_has_ended = false;
  TwoItems items;
  items.run(linger_after_first_block<20'000>);
  EXPECT_TRUE(second_has_begun_to_add);
}

TEST(TurnsTest, items_whose_gradients_overlap_in_different_ways_add_one_after_the_other) {
  second_has_begun_to_add = first_has_ended = false;
  TwoItems items;
  items.gradient.dv = items.gradient.dk;
  items.run(linger_after_first_block<30>);
  EXPECT_TRUE(second_has_begun_to_add);
}

void throw_while_others_wait(const BackwardItem& item, std::byte*) {
  if (item.row_begin == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    throw std::runtime_error("first item");
  }
  item.turn.wait(item.turn.state, kBlockKeys);
}

TEST(TurnsTest, an_item_that_throws_holds_nobody_up) {
  TwoItems items;
  EXPECT_THROW(items.run(throw_while_others_wait), std::runtime_error);
}

}  // namespace
}  // namespace distca::kernels
