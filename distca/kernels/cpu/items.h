#pragma once
// A batch of tasks cut into items: (task, key head, tile of flattened rows; cpu/engine.h), each
// with a predicted time. Errors: none; shape and tasks are checked before. Thread rule: pure
// functions.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/kernels/attention.h"

namespace distca::kernels {

struct Item {
  int64_t task = 0;  // index in the batch
  int64_t kv_head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t cost = 0;  // predicted time, in pairs of a row and a key
};

/// Every row of every task and key head once, in ascending (task, key head, row). An item holds
/// whole queries, unless one query's rows are more than an item may have. If `pieces` > 0, an item
/// longer than 1 / pieces of the batch is halved until it is not, or has few rows.
std::vector<Item> cut_items(const Shape& shape, std::span<const Task> tasks, int64_t pieces);

/// For threads that take items in the order given: longest first, and cut only as far as it takes
/// for them to end within 2 % of each other, as predicted; items of equal length stay in order.
std::vector<Item> cut_evenly(const Shape& shape, std::span<const Task> tasks, int threads);

}  // namespace distca::kernels
