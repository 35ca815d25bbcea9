#include "distca/kernels/cpu/thread_pool.h"

#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "distca/base/error.h"
#include "distca/kernels/cpu/pause.h"

namespace distca::kernels {
namespace {

// Looks before a thread without work goes to sleep: some tens of microseconds, as long as the next
// layer's call may take to come; waking a sleeping thread takes about as long.
constexpr int kLooksBeforeSleep = 2000;

constexpr size_t kHugePage = size_t{2} << 20;

/// The scratch memory of one thread, which grows to the most that was ever asked for. It lies on
/// pages of its own that the thread touches first itself: so they lie in the memory next to its
/// core, and no two threads write one cache line.
class Scratch {
 public:
  /// Returns at least so many bytes, aligned to a page and not cleared. Earlier pointers are void
  /// where it grows. Throws std::bad_alloc.
  std::byte* reserve(size_t bytes) {
    if (bytes <= size_) return data_.get();
    data_.reset(), size_ = 0;
    // Huge pages save misses of the address cache. Less than one is rounded up to small pages.
    const size_t alignment = bytes < kHugePage / 2 ? 4096 : kHugePage;
    const size_t size = (bytes + alignment - 1) / alignment * alignment;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, size)));
    if (!data_) throw std::bad_alloc();
    size_ = size;
    if (alignment == kHugePage) madvise(data_.get(), size_, MADV_HUGEPAGE);  // a wish, no need
    return data_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace

struct ThreadPool::State {
  struct Job {
    int64_t items = 0;
    size_t scratch_bytes = 0;
    const std::function<void(int64_t, std::byte*)>* work = nullptr;
  };

  std::mutex mutex;
  std::condition_variable wake;   // `calls` rose, or `stop`
  std::condition_variable empty;  // `inside` became 0
  // Changed under the mutex; read without it by those who look before they sleep.
  std::atomic<uint64_t> calls{0};
  std::atomic<int> inside{0};  // threads, besides the caller, that work on `job`
  std::atomic<bool> stop{false};
  // Under the mutex.
  bool open = false;  // true while threads may still join `job`
  Job job;
  std::exception_ptr error;

  std::atomic<bool> running{false};
  std::atomic<int64_t> next{0};
  int looks = kLooksBeforeSleep;
  std::vector<Scratch> scratch;  // [threads]
  std::vector<std::thread> threads;

  explicit State(int count) : scratch(count) {
    // Where threads share a core, one that looks keeps another from working.
    if (count > static_cast<int>(std::thread::hardware_concurrency())) looks = 0;
    try {
      for (int i = 1; i < count; ++i) threads.emplace_back([this, i] { serve(i); });
    } catch (...) {
      end();
      throw;
    }
  }
  ~State() { end(); }

  void end() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  /// Takes items until there are none. The first exception ends the taking: items that run
  /// elsewhere are finished, the others never begin.
  void work_through(const Job& current, int thread) {
    try {
      std::byte* memory = scratch[thread].reserve(current.scratch_bytes);
      while (true) {
        const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
        if (item >= current.items) return;
        (*current.work)(item, memory);
      }
    } catch (...) {
      next.store(current.items, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  template <typename Ready>
  void look(const Ready& ready) const {
    for (int i = 0; i < looks && !ready(); ++i) pause_briefly();
  }

  void serve(int thread) {
    uint64_t seen = 0;
    while (true) {
      look([&] { return calls != seen || stop; });
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return calls != seen || stop; });
      if (stop) return;
      seen = calls;
      if (!open) continue;  // came too late: the others have done it all
      const Job current = job;
      ++inside;
      lock.unlock();
      work_through(current, thread);
      lock.lock();
      if (--inside == 0) empty.notify_one();
    }
  }

  void run(const Job& current) {
    next.store(0, std::memory_order_relaxed);
    if (threads.empty() || current.items == 1) return work_through(current, 0);
    std::unique_lock lock(mutex);
    job = current;
    open = true;
    ++calls;
    lock.unlock();
    wake.notify_all();
    work_through(current, 0);
    lock.lock();
    open = false;
    lock.unlock();
    look([&] { return inside == 0; });
    lock.lock();
    empty.wait(lock, [&] { return inside == 0; });
  }
};

ThreadPool::ThreadPool(int threads) {
  DISTCA_CHECK(threads >= 1, "a pool of {} threads", threads);
  state_ = std::make_unique<State>(threads);
}
ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return static_cast<int>(state_->scratch.size()); }

void ThreadPool::run(int64_t items, size_t scratch_bytes,
                     const std::function<void(int64_t, std::byte*)>& work) {
  DISTCA_CHECK_GE(items, 0);
  DISTCA_CHECK(!state_->running.exchange(true), "the pool runs another call");
  if (items > 0) state_->run({items, scratch_bytes, &work});
  const std::exception_ptr error = std::exchange(state_->error, nullptr);
  state_->running = false;
  if (error) std::rethrow_exception(error);
}

}  // namespace distca::kernels
