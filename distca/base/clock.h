#pragma once
// Time that only goes forward, for durations. Any thread.

#include <time.h>

#include <chrono>
#include <cstdint>

namespace distca {

/// Since an arbitrary start, the same for all threads of the process.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Processor time of the calling thread: what other threads and programs do meanwhile does not
/// lengthen it.
inline double thread_processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Fractions of a millisecond are dropped.
inline std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

class Stopwatch {
 public:
  double seconds() const { return steady_seconds() - start_; }
  void restart() { start_ = steady_seconds(); }

 private:
  double start_ = steady_seconds();
};

}  // namespace distca
