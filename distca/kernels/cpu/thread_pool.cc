#include "distca/kernels/cpu/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "distca/base/error.h"
#include "distca/kernels/cpu/pause.h"
#include "distca/kernels/cpu/scratch.h"

namespace distca::kernels {
namespace {

// Looks before a thread without work goes to sleep: some tens of microseconds, as long as the next
// layer's call may take to come; waking a sleeping thread takes about as long.
constexpr int kLooksBeforeSleep = 2000;

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
