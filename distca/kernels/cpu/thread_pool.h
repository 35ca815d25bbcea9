#pragma once
// Threads that work through the items of a task batch, and the scratch memory they reuse.
//
// The calling thread is thread 0 and works too; a pool of 1 starts no threads. Between calls the
// others sleep. Items are taken in ascending order: when item i runs, every item before it has been
// taken, so an item may wait for an earlier one.
// Errors: the first exception of an item is rethrown once the items that run have ended; no later
// item begins. A call within a call, or beside one, is a CHECK. Thread rule: one call at a time.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace distca::kernels {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();

  int threads() const;
  /// Calls work(item, scratch) for item 0 .. items - 1, each once; returns when all are done.
  /// `scratch`: at least `scratch_bytes`, the thread's own, aligned to 64 bytes, not cleared.
  void run(int64_t items, size_t scratch_bytes,
           const std::function<void(int64_t item, std::byte* scratch)>& work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca::kernels
