#include "distca/comm/health/watchdog.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "distca/base/clock.h"

namespace distca {

Watchdog::Watchdog(double timeout_s, double tick_s)
    : timeout_s_(timeout_s),
      tick_s_(tick_s),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

void Watchdog::begin(std::function<void()> abort) {
  std::lock_guard lock(mutex_);
  abort_ = std::move(abort);
  waited_s_ = 0;
  begin_ = steady_seconds();
  if (interrupted_) abort_current();
}

double Watchdog::end() {
  std::lock_guard lock(mutex_);
  abort_ = nullptr;
  return steady_seconds() - begin_;
}

void Watchdog::interrupt() {
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  abort_current();
}

void Watchdog::abort_current() {
  if (abort_) std::exchange(abort_, nullptr)();
}

void Watchdog::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  double last = steady_seconds();
  while (!stop.stop_requested()) {
    stopped_.wait_for(lock, stop, std::chrono::duration<double>(tick_s_), [] { return false; });
    const double now = steady_seconds();
    waited_s_ += std::min({now - last, 2 * tick_s_, now - begin_});
    last = now;
    if (waited_s_ >= timeout_s_) abort_current();
  }
}

}  // namespace distca
