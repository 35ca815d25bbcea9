#include "bench/core_time.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "distca/base/clock.h"

namespace distca::bench {
namespace {

/// Between two readings of the clock; an interrupt alone takes longer.
constexpr double kUndisturbed = 1e-6;

double clock_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class ClockReader {
 public:
  ClockReader() : thread_([this] { read(); }) {
    while (!reads_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~ClockReader() {
    stop_ = true;
    thread_.join();
  }
  double taken_seconds() const { return taken_; }
  /// That its own thread was charged for.
  double processor_seconds() {
    clockid_t clock{};
    pthread_getcpuclockid(thread_.native_handle(), &clock);
    return clock_seconds(clock);
  }

 private:
  void read() {
    const sched_param lowest{};
    sched_setscheduler(0, SCHED_IDLE, &lowest);
    reads_ = true;
    double taken = 0;
    for (double last = steady_seconds(); !stop_.load(std::memory_order_relaxed);) {
      const double now = steady_seconds();
      if (now - last > kUndisturbed) {
        taken += now - last;
        taken_.store(taken, std::memory_order_relaxed);
      }
      last = now;
    }
  }

  std::atomic<bool> reads_ = false, stop_ = false;
  std::atomic<double> taken_ = 0;
  std::thread thread_;
};

}  // namespace

CoreTime core_time_of(const std::function<void()>& work) {
  ClockReader reader;
  const auto read = [&]() -> CoreTime {
    return {
        .seconds = steady_seconds(),
        .taken_seconds = reader.taken_seconds(),
        .process_seconds = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - reader.processor_seconds()};
  };
  const CoreTime begin = read();
  work();
  const CoreTime end = read();
  return {.seconds = end.seconds - begin.seconds,
          .taken_seconds = end.taken_seconds - begin.taken_seconds,
          .process_seconds = end.process_seconds - begin.process_seconds};
}

}  // namespace distca::bench
