#include "distca/kernels/cpu/items.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

#include "distca/base/integers.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/mask_parts.h"

namespace distca::kernels {
namespace {

// Copying a key tile and values takes as long as this many rows' products with it.
constexpr int64_t kTileCostRows = 12;
// Packing a row's query and writing its output take as long as its products with this many keys.
constexpr int64_t kRowCostKeys = 36;
// Below this, copying the keys costs more than even threads gain.
constexpr int64_t kFewRows = 2 * kPanelRows;

/// Predicts the time of rows of one task.
class Predictor {
 public:
  Predictor(const Task& task, int64_t group) : task_(task), group_(group) {
    keys_before_.reserve(task.keys.size() + 1);
    keys_before_.push_back(0);
    for (const KeyRange& range : task.keys) {
      keys_before_.push_back(keys_before_.back() + range.tokens);
    }
  }

  int64_t cost(int64_t row_begin, int64_t row_end) const {
    int64_t pairs = 0;
    int64_t rows = 0;
    for (int64_t row = row_begin; row < row_end; row += kPanelRows) {
      pairs += kPanelRows * keys_seen(row, std::min<int64_t>(row + kPanelRows, row_end));
      rows += kPanelRows;
    }
    const int64_t copied = round_up(keys_seen(row_begin, row_end), kTileKeys);
    return pairs + kTileCostRows * copied + kRowCostKeys * rows;
  }

 private:
  /// Keys that some of these rows may see.
  int64_t keys_seen(int64_t row_begin, int64_t row_end) const {
    if (task_.keys.empty()) return 0;
    const KeyRange& last = task_.keys.back();
    const Range all{0, last.position + last.tokens};
    const int64_t first_query = task_.q_position + row_begin / group_;
    const int64_t last_query = task_.q_position + (row_end - 1) / group_;
    const int64_t begin = visible_keys(task_.mask, first_query, all).begin;
    const int64_t end = visible_keys(task_.mask, last_query, all).end;
    return std::max<int64_t>(keys_below(end) - keys_below(begin), 0);
  }

  /// Keys at positions below this one.
  int64_t keys_below(int64_t position) const {
    const auto after = std::ranges::upper_bound(task_.keys, position, {}, &KeyRange::position);
    if (after == task_.keys.begin()) return 0;
    const size_t i = after - task_.keys.begin() - 1;
    return keys_before_[i] + std::min(position - task_.keys[i].position, task_.keys[i].tokens);
  }

  const Task& task_;
  int64_t group_;
  std::vector<int64_t> keys_before_;  // [ranges + 1]
};

class Cutter {
 public:
  Cutter(const Shape& shape, std::vector<Item>& items)
      : group_(shape.num_heads / shape.num_kv_heads),
        tile_(group_ <= kTileRows ? round_down(kTileRows, group_) : kTileRows),
        step_(group_ <= kTileRows ? group_ : kPanelRows),
        kv_heads_(shape.num_kv_heads),
        items_(items) {
    const int64_t panels = std::lcm(step_, int64_t{kPanelRows});
    if (panels < tile_) step_ = panels;
  }

  /// `most`: predicted time of an item, unless it has few rows.
  void cut(const Task& task, int64_t index, int64_t most) {
    const Predictor predictor(task, group_);
    const size_t first = items_.size();
    const int64_t rows = task.q_tokens * group_;
    for (int64_t row = 0; row < rows; row += tile_) {
      add({.task = index, .row_begin = row, .row_end = std::min(row + tile_, rows)}, predictor,
          most);
    }
    const size_t count = items_.size() - first;
    for (int64_t head = 1; head < kv_heads_; ++head) {
      for (size_t i = 0; i < count; ++i) {
        items_.push_back(items_[first + i]);
        items_.back().kv_head = head;
      }
    }
  }

 private:
  void add(Item item, const Predictor& predictor, int64_t most) {
    item.cost = predictor.cost(item.row_begin, item.row_end);
    const int64_t middle = item.row_begin + round_up((item.row_end - item.row_begin) / 2, step_);
    if (item.cost <= most || item.row_end - item.row_begin < 2 * kFewRows ||
        middle >= item.row_end) {
      items_.push_back(item);
      return;
    }
    Item upper = item;
    item.row_end = upper.row_begin = middle;
    add(item, predictor, most);
    add(upper, predictor, most);
  }

  int64_t group_;
  int64_t tile_;  // rows
  int64_t step_;  // rows: where a tile may be halved
  int64_t kv_heads_;
  std::vector<Item>& items_;
};

/// Returns true if the last of `threads` threads, which take the items in order, ends at most 2 %
/// after the mean.
bool ends_together(const std::vector<Item>& items, int threads) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> busy;  // until when
  for (int i = 0; i < threads; ++i) busy.push(0);
  int64_t total = 0, last = 0;
  for (const Item& item : items) {
    const int64_t end = busy.top() + item.cost;
    busy.pop();
    busy.push(end);
    total += item.cost;
    last = std::max(last, end);
  }
  return 50 * last * threads <= 51 * total;
}

}  // namespace

std::vector<Item> cut_items(const Shape& shape, std::span<const Task> tasks, int64_t pieces) {
  std::vector<Item> items;
  Cutter cutter(shape, items);
  const auto cut_all = [&](int64_t most) {
    items.clear();
    for (size_t i = 0; i < tasks.size(); ++i) {
      cutter.cut(tasks[i], static_cast<int64_t>(i), most);
    }
  };
  cut_all(INT64_MAX);
  if (pieces <= 0) return items;
  int64_t total = 0, longest = 0;
  for (const Item& item : items) total += item.cost, longest = std::max(longest, item.cost);
  const int64_t most = ceil_div(total, pieces);
  if (longest > most) cut_all(most);
  return items;
}

std::vector<Item> cut_evenly(const Shape& shape, std::span<const Task> tasks, int threads) {
  constexpr int64_t kMostPieces = 16;  // a thread
  if (threads == 1) return cut_items(shape, tasks, 0);
  std::vector<Item> items;
  for (int64_t pieces = 0; pieces <= kMostPieces; pieces = pieces == 0 ? 2 : 2 * pieces) {
    items = cut_items(shape, tasks, pieces * threads);
    std::ranges::stable_sort(items, std::greater(), &Item::cost);
    if (ends_together(items, threads)) return items;
  }
  return items;
}

}  // namespace distca::kernels
