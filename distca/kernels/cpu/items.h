#pragma once
// Cuts a list of tasks into items, each with a predicted time. An item is (task, key head, tile of
// flattened rows), as cpu/engine.h explains. There are no errors, because shape and tasks are
// checked before. Thread rule: pure functions.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/kernels/attention.h"

namespace distca::kernels {

/// Rows [row_begin, row_end) of one task and key head.
struct Item {
  int64_t task = 0;  // index in the list
  int64_t kv_head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t cost = 0;  // predicted time, in (row, key) pairs
};

/// Cuts every row of every task and key head into exactly one item, in ascending order of task, key
/// head, row. An item holds whole queries, unless one query has more rows than an item may have. If
/// `pieces` > 0, an item that is longer than 1 / pieces of the whole list is halved until it is
/// not, or has few rows.
std::vector<Item> cut_items(const Shape& shape, std::span<const Task> tasks, int64_t pieces);

/// Cuts for threads that take items in the order given. The longest items come first; equally long
/// ones stay in order. Items are cut only as far as it takes for all threads to end within 2 % of
/// each other, as predicted.
std::vector<Item> cut_evenly(const Shape& shape, std::span<const Task> tasks, int threads);

}  // namespace distca::kernels
