#pragma once
// The order in which the items of a backward batch add to shared gradients.
//
// Items of one key head whose dk or dv overlap add in the order of the list, and so do those whose
// dq overlaps: the sums are bitwise the same for every number of threads, and no two threads write
// one number at a time. They still run beside each other: an item may add to the keys up to a
// position as soon as all items before it in its chain have added theirs (cpu/engine.h, Turn).
// Where the gradients of overlapping tasks lie in memory in different ways (other strides, other
// positions, other heads), each of these items begins to add when those before it have ended.
//
// Waiting cannot deadlock: items are taken in the order of items(), an item waits for earlier ones
// only, so of all items taken and not ended the first never waits. An item that throws has ended
// too. Thread rule: turn() and finish() of different items from any thread.

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

class Turns {
 public:
  /// `items`: as cut_items leaves them.
  Turns(const Shape& shape, std::span<const BackwardTask> tasks, std::vector<Item> items);

  /// In the order in which to take them: of all chains, the one with the most left to do comes
  /// next, so that chains end together and neighbours belong to different ones.
  const std::vector<Item>& items() const { return items_; }
  Turn turn(int64_t index);
  /// The item has ended, whether or not it did all its work.
  void finish(int64_t index);

 private:
  struct Place;
  /// Items that wait for each other, in order.
  struct Chain {
    std::vector<Place*> places;
    std::atomic<int64_t> ended{0};  // so many of the first have ended; may lag behind
    bool strict = false;            // one after the other
  };
  /// An item's place in its chains. A cache line of its own: others look at it while they wait.
  struct alignas(64) Place {
    std::atomic<int64_t> progress{0};  // it adds nothing more to the keys below this position
    Chain* keys = nullptr;
    int64_t keys_index = 0;
    Chain* queries = nullptr;  // nullptr: no other task adds to its dq
    int64_t queries_index = 0;
    Range query_rows{};  // comparable within a chain
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
