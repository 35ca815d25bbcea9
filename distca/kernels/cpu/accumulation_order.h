#pragma once
// The order in which the items of a backward pass add to gradients that they share.
//
// Items of one key head that add to the same rows of a key buffer do so in the order of the task
// list, and so do items that add to the same rows of a query buffer. So the sums are bitwise the
// same for every number of threads, and no two threads write to a number at the same time. Such
// items still run side by side: an item may add to the keys up to a position as soon as all items
// before it in its chain have added to them (AccumulationGate in cpu/engine.h). If tasks give a row
// different positions, each item of the chain begins to add only when those before it have ended.
//
// Waiting cannot deadlock. Items are taken in the order of items(), and an item waits only for
// earlier ones, so the first of the items that were taken and have not ended never waits. An item
// that throws has ended too.
//
// Thread rule: any thread may call gate() and finish(), of different items at the same time.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "distca/base/integers.h"
#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/items.h"

namespace distca::kernels {

/// Groups of tasks that add to the same rows in backward. Each list is [task] -> the group that the
/// task is in, which has the number of its first task.
struct SharedRows {
  std::vector<int64_t> keys;      // connected by rows of dk and dv
  std::vector<int64_t> queries;   // connected by rows of dq
  std::vector<int64_t> families;  // connected by either
  std::vector<bool> shifted;      // [group of keys] whether some row is at several positions
};
/// Compares the buffers and rows of all tasks.
SharedRows find_shared_rows(std::span<const Task> tasks);

/// The chains of one backward pass.
class AccumulationOrder {
 public:
  /// `items` are as cut_items leaves them.
  AccumulationOrder(const Shape& shape, std::span<const Task> tasks, std::vector<Item> items);

  /// The items in the order in which threads must take them. The next item is always one of the
  /// chain with the most work left, so that chains end together and neighbours belong to different
  /// chains.
  const std::vector<Item>& items() const { return items_; }
  /// The gate of item number `index` of items().
  AccumulationGate gate(int64_t index);
  /// Tells the order that an item has ended, whether or not it did all its work.
  void finish(int64_t index);

 private:
  struct Place;
  /// Items that wait for each other, in order.
  struct Chain {
    std::vector<Place*> places;
    std::atomic<int64_t> ended{0};  // at least so many of the first places have ended
    bool shifted = false;           // items add one after the other
  };
  /// Its number in a chain.
  struct Link {
    Chain* chain = nullptr;
    int64_t index = 0;
  };
  /// An item's place in its chains. It has a cache line of its own, because other threads look at
  /// it while they wait.
  struct alignas(64) Place {
    std::atomic<int64_t> progress{0};  // nothing more is added to the keys below this position
    Link keys{};
    Link queries{};      // in none if no other task adds to the item's dq
    Range query_rows{};  // rows of the query buffer, flattened
  };

  static void wait(void* state, int64_t position);
  static void done(void* state, int64_t position);
  template <typename Concerned>
  static void wait_for(const Link& link, int64_t position, const Concerned& concerned);

  std::vector<Item> items_;
  std::unique_ptr<Place[]> places_;  // [items]
  std::vector<std::unique_ptr<Chain>> chains_;
};

}  // namespace distca::kernels
