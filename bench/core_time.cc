#include "bench/core_time.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "distca/base/clock.h"

namespace distca::bench {
namespace {

constexpr std::chrono::milliseconds kCalibration(200);

double process_processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Turns of a loop of about a microsecond, while nobody else wants the core.
class IdleCounter {
 public:
  IdleCounter() : thread_([this] { count(); }) {
    while (turns() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~IdleCounter() {
    stop_ = true;
    thread_.join();
  }
  int64_t turns() const { return turns_.load(std::memory_order_relaxed); }
  /// That the counter's own thread was charged for.
  double processor_seconds() {
    clockid_t clock{};
    timespec time{};
    pthread_getcpuclockid(thread_.native_handle(), &clock);
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

 private:
  void count() {
    const sched_param lowest{};
    sched_setscheduler(0, SCHED_IDLE, &lowest);
    volatile uint64_t sum = 0;
    while (!stop_.load(std::memory_order_relaxed)) {
      for (uint64_t i = 0; i < 500; ++i) sum = sum + i;
      turns_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> turns_ = 0;
  std::thread thread_;
};

}  // namespace

CoreTime core_time_of(const std::function<void()>& work, const std::function<void()>& meet) {
  IdleCounter counter;
  struct Reading {
    double wall_s, process_s;
    int64_t turns;
  };
  const auto read = [&]() -> Reading {
    return {steady_seconds(), process_processor_seconds() - counter.processor_seconds(),
            counter.turns()};
  };
  const auto measure = [&](const auto& body) -> Reading {
    meet();
    const Reading begin = read();
    body();
    const Reading end = read();
    return {end.wall_s - begin.wall_s, end.process_s - begin.process_s, end.turns - begin.turns};
  };
  const Reading idle = measure([] { std::this_thread::sleep_for(kCalibration); });
  const Reading busy = measure(work);
  const double turns_per_s = static_cast<double>(idle.turns) / idle.wall_s;
  return {.seconds = busy.wall_s,
          .taken_seconds = busy.wall_s - static_cast<double>(busy.turns) / turns_per_s,
          .process_seconds = busy.process_s};
}

}  // namespace distca::bench
