#include "distca/comm/gloo_loop.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <string>
#include <system_error>

namespace distca {
namespace {

/// Returns the threads of this process, ascending, and none where there is no /proc.
std::vector<pid_t> own_threads() {
  std::vector<pid_t> threads;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/task", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    threads.push_back(thread);
  }
  if (error) return {};
  std::ranges::sort(threads);
  return threads;
}

}  // namespace

void GlooLoop::start(const std::function<void()>& make_device) {
  static std::mutex one_at_a_time;  // ranks as threads of one process, in tests
  const std::scoped_lock lock(one_at_a_time);
  const std::vector<pid_t> before = own_threads();
  make_device();
  if (before.empty()) return;
  const std::vector<pid_t> after = own_threads();
  std::ranges::set_difference(after, before, std::back_inserter(threads_));
  std::erase_if(threads_, [](pid_t thread) { return sched_getscheduler(thread) != SCHED_OTHER; });
}

void GlooLoop::set_batch(bool batch) const {
  const sched_param none{};
  for (const pid_t thread : threads_) {
    sched_setscheduler(thread, batch ? SCHED_BATCH : SCHED_OTHER, &none);
  }
}

}  // namespace distca
