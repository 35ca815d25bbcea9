#pragma once
// The order in which the items of a backward batch add to shared gradients.
//
// Items of one key head that add to the same rows of a key buffer do so in the order of the list,
// and so do those that add to the same rows of a query buffer: the sums are bitwise the same for
// every number of threads, and no two threads write one number at a time. They still run beside
// each other: an item may add to the keys up to a position as soon as all items before it in its
// chain have added theirs (cpu/engine.h, AccumulationGate). Where tasks give one row different
// positions, each of these items begins to add when those before it have ended.
//
// Waiting cannot deadlock: items are taken in the order of items(), an item waits for earlier ones
// only, so of all items taken and not ended the first never waits. An item that throws has ended
// too. Thread rule: gate() and finish() of different items from any thread.

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

/// Which tasks add to the same rows in backward. [task] Groups are named by their first task.
struct SharedRows {
  std::vector<int64_t> keys;      // group of tasks connected by rows of dk and dv
  std::vector<int64_t> queries;   // ... of dq
  std::vector<int64_t> families;  // ... of either
  std::vector<bool> shifted;      // [group of keys] some row is at several positions
};
SharedRows find_shared_rows(std::span<const Task> tasks);

class AccumulationOrder {
 public:
  /// `items`: as cut_items leaves them.
  AccumulationOrder(const Shape& shape, std::span<const Task> tasks, std::vector<Item> items);

  /// In the order in which to take them: of all chains, the one with the most left to do comes
  /// next, so that chains end together and neighbours belong to different ones.
  const std::vector<Item>& items() const { return items_; }
  AccumulationGate gate(int64_t index);
  /// The item has ended, whether or not it did all its work.
  void finish(int64_t index);

 private:
  struct Place;
  /// Items that wait for each other, in order.
  struct Chain {
    std::vector<Place*> places;
    std::atomic<int64_t> ended{0};  // so many of the first have ended; may lag behind
    bool shifted = false;           // one after the other
  };
  /// An item's place in its chains. A cache line of its own: others look at it while they wait.
  struct alignas(64) Place {
    std::atomic<int64_t> progress{0};  // it adds nothing more to the keys below this position
    Chain* keys = nullptr;
    int64_t keys_index = 0;
    Chain* queries = nullptr;  // nullptr: no other task adds to its dq
    int64_t queries_index = 0;
    Range query_rows{};  // of the query buffer, flattened
  };

  static void wait(void* state, int64_t position);
  static void done(void* state, int64_t position);
  template <typename Concerned>
  static void wait_for(Chain& chain, int64_t index, int64_t position, const Concerned& concerned);

  std::vector<Item> items_;
  std::unique_ptr<Place[]> places_;  // [items]
  std::vector<std::unique_ptr<Chain>> chains_;
};

}  // namespace distca::kernels
