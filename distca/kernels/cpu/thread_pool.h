#pragma once
// Threads that work through the items of a task list, and the scratch memory that they reuse.
//
//     ThreadPool pool(4);
//     pool.run(items.size(), scratch_bytes, [&](int64_t item, std::byte* scratch) {
//       engine.forward(forward_items[item], scratch);
//     });
//
// The calling thread is thread 0 and works too, so a pool of 1 starts no threads. Between calls,
// the other threads sleep. Items are taken in ascending order: when item i runs, all items before
// it have been taken, so an item may wait for an earlier one.
//
// Errors: if an item throws, no further item begins, and the first exception is rethrown when the
// items that run have ended. A call within a call, or at the same time as another, is a CHECK.
// Thread rule: one call at a time.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace distca::kernels {

/// A pool of `threads` threads, the calling one included.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();

  int threads() const;
  /// Calls work(item, scratch) once for each of the items 0 .. items - 1, and returns when all are
  /// done. `scratch` belongs to the thread that runs the item: at least `scratch_bytes`, aligned to
  /// 64 bytes, and not cleared.
  void run(int64_t items, size_t scratch_bytes,
           const std::function<void(int64_t item, std::byte* scratch)>& work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca::kernels
