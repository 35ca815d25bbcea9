#include "distca/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace distca {

int threads_here() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

void for_each_in_parallel(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;  // under the mutex, with the next
  size_t failed = count;
  const auto work_through = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (i < failed) error = std::current_exception();
        failed = std::min(failed, i);
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (size_t i = 1; i < std::min(count, static_cast<size_t>(std::max(1, threads))); ++i)
        others.emplace_back(work_through);
    } catch (const std::system_error&) {  // no more threads are to be had: fewer do the work
    }
    work_through();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace distca
