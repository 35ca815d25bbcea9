#pragma once
// Clocks that only go forward, for measuring durations, and the clock on the wall. Any thread may
// call these functions; a Stopwatch belongs to one thread at a time.
//
//     const Stopwatch watch;
//     work();
//     fmt::print("{:.3f} s\n", watch.seconds());

#include <time.h>

#include <chrono>
#include <cstdint>

namespace distca {

/// Seconds since an arbitrary moment, which is the same for all threads of the process.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds since 1970 by the clock of this machine, which may be set.
inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Processor time that the calling thread, or all threads of the process, have used, in seconds.
/// Unlike elapsed time, it does not grow while other threads and programs have the processor.
inline double processor_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
inline double thread_processor_seconds() { return processor_seconds(CLOCK_THREAD_CPUTIME_ID); }
inline double process_processor_seconds() { return processor_seconds(CLOCK_PROCESS_CPUTIME_ID); }

/// Converts seconds to milliseconds. Fractions of a millisecond are dropped.
inline std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

/// Measures elapsed time since it was made or restarted.
class Stopwatch {
 public:
  double seconds() const { return steady_seconds() - start_; }
  void restart() { start_ = steady_seconds(); }

 private:
  double start_ = steady_seconds();
};

}  // namespace distca
