#pragma once
// Time that only goes forward, for durations. Any thread.

#include <chrono>

namespace distca {

/// Since an arbitrary start, the same for all threads of the process.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Stopwatch {
 public:
  double seconds() const { return steady_seconds() - start_; }
  void restart() { start_ = steady_seconds(); }

 private:
  double start_ = steady_seconds();
};

}  // namespace distca
