#include "distca/kernels/cpu/items.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "distca/base/random.h"
#include "distca/kernels/cpu/engine.h"

namespace distca::kernels {
namespace {

Shape heads(int64_t num_heads, int64_t num_kv_heads) {
  return {.num_heads = num_heads, .num_kv_heads = num_kv_heads, .head_dim_qk = 8, .head_dim_v = 8};
}

/// Keys [0, tokens).
std::vector<KeyRange> keys_of(int64_t tokens) { return {{.tokens = tokens}}; }

TEST(ItemsTest, cover_every_row_of_every_key_head_once_in_order) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const int64_t kv_heads = 1 + static_cast<int64_t>(random.below(3));
    const int64_t group = 1 + static_cast<int64_t>(random.below(round % 10 == 0 ? 600 : 9));
    const Shape shape = heads(kv_heads * group, kv_heads);
    const std::vector<KeyRange> keys = keys_of(5000);
    std::vector<Task> tasks(random.below(5));
    for (Task& task : tasks) {
      task = {.q_tokens = static_cast<int64_t>(random.below(700)),
              .q_position = static_cast<int64_t>(random.below(4000)),
              .keys = keys};
    }
    const std::vector<Item> items =
        cut_items(shape, tasks, static_cast<int64_t>(random.below(3)) * 4);
    std::map<std::pair<int64_t, int64_t>, int64_t> next;  // row of a task and key head
    for (size_t i = 0; i < items.size(); ++i) {
      const Item& item = items[i];
      EXPECT_EQ(item.row_begin, (next[{item.task, item.kv_head}])) << "round " << round;
      EXPECT_LT(item.row_begin, item.row_end);
      EXPECT_LE(item.row_end - item.row_begin, kTileRows);
      EXPECT_GT(item.cost, 0);
      if (group <= kTileRows) {
        EXPECT_EQ(item.row_begin % group, 0) << "a query's rows are cut";
      }
      next[{item.task, item.kv_head}] = item.row_end;
      if (i > 0) {
        EXPECT_LE(std::pair(items[i - 1].task, items[i - 1].kv_head),
                  std::pair(item.task, item.kv_head));
      }
    }
    for (size_t t = 0; t < tasks.size(); ++t) {
      for (int64_t h = 0; h < kv_heads; ++h) {
        EXPECT_EQ((next[{t, h}]), tasks[t].q_tokens * group) << "round " << round;
      }
    }
  }
}

TEST(ItemsTest, predicted_time_follows_the_visible_keys) {
  const std::vector<KeyRange> keys = keys_of(1 << 20);
  const auto cost = [&](int64_t position, Mask mask) {
    const Task task{.q_tokens = 256, .q_position = position, .keys = keys, .mask = mask};
    const std::vector<Item> items = cut_items(heads(1, 1), {&task, 1}, 0);
    EXPECT_EQ(items.size(), 1u);
    return static_cast<double>(items[0].cost);
  };
  EXPECT_NEAR(cost(1 << 18, {}) / cost(1 << 17, {}), 2, 0.02);
  EXPECT_NEAR(cost(0, {.causal = false}) / cost(1 << 19, {}), 2, 0.02);
  EXPECT_NEAR(cost(1 << 19, {.window_left = 1 << 16}) / cost(1 << 16, {}), 1, 0.02);
  EXPECT_EQ(cost(1 << 18, {.window_left = 4000}), cost(1 << 19, {.window_left = 4000}));
}

TEST(ItemsTest, gaps_between_ranges_cost_nothing) {
  const KeyRange first{.tokens = 1024, .position = 512};
  const KeyRange second{.tokens = 3072, .position = 9000};
  const auto cost = [&](const std::vector<KeyRange>& keys) {
    const Task task{.q_tokens = 64, .q_position = 20'000, .keys = keys};
    return cut_items(heads(2, 2), {&task, 1}, 0).at(0).cost;
  };
  EXPECT_EQ(cost({first, second}), cost(keys_of(4096)));
  EXPECT_LT(cost({first}), cost({first, second}) / 2);
}

TEST(ItemsTest, long_items_are_halved_until_each_is_a_small_part) {
  const std::vector<KeyRange> keys = keys_of(8192);
  std::vector<Task> tasks{
      {.q_tokens = 2 * kTileRows, .q_position = 8192 - 2 * kTileRows, .keys = keys},
      {.q_tokens = 64, .q_position = 100, .keys = keys}};
  EXPECT_EQ(cut_items(heads(1, 1), tasks, 0).size(), 3u);
  const std::vector<Item> items = cut_items(heads(1, 1), tasks, 8);
  int64_t total = 0, longest = 0;
  for (const Item& item : items) total += item.cost, longest = std::max(longest, item.cost);
  EXPECT_LE(longest, total / 6);
  for (const Item& item : items) EXPECT_EQ(item.row_begin % kPanelRows, 0);
  // Few rows stay together, however long their keys.
  for (const Item& item : cut_items(heads(1, 1), tasks, 1'000'000)) {
    EXPECT_GE(item.row_end - item.row_begin, 2 * kPanelRows);
  }
}

TEST(ItemsTest, longest_come_first_and_equals_keep_their_order) {
  const std::vector<KeyRange> keys = keys_of(8192);
  std::vector<Task> tasks;
  for (const int64_t position : {0, 4096, 1024, 4096, 256}) {
    tasks.push_back({.q_tokens = 512, .q_position = position, .keys = keys});
  }
  const std::vector<Item> items = cut_evenly(heads(2, 2), tasks, 2);
  for (size_t i = 1; i < items.size(); ++i) {
    EXPECT_LE(items[i].cost, items[i - 1].cost);
    if (items[i].cost == items[i - 1].cost) {
      EXPECT_LT(std::pair(items[i - 1].task, items[i - 1].kv_head),
                std::pair(items[i].task, items[i].kv_head));
    }
  }
  EXPECT_EQ(items.back().task, 0);
}

TEST(ItemsTest, items_are_cut_only_as_far_as_threads_end_together) {
  const std::vector<KeyRange> keys = keys_of(8192);
  const std::vector<Task> long_task{{.q_tokens = 4 * kTileRows, .keys = keys}};
  // Two heads on two threads: one of each kind for both.
  EXPECT_EQ(cut_evenly(heads(2, 2), long_task, 2).size(), 8u);
  EXPECT_EQ(cut_evenly(heads(1, 1), long_task, 1).size(), 4u);
  const std::vector<Task> one_tile{{.q_tokens = kTileRows, .keys = keys}};
  EXPECT_EQ(cut_evenly(heads(1, 1), one_tile, 1).size(), 1u);
  EXPECT_GE(cut_evenly(heads(1, 1), one_tile, 2).size(), 2u);
}

}  // namespace
}  // namespace distca::kernels
