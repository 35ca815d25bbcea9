#pragma once
// How much of a core something takes, whoever it is that runs: threads, the kernel's network code
// in interrupts (which this kernel may count as somebody else's), switches between them. A thread
// of the lowest priority counts turns of a loop; what it could not count was taken from it. Thread
// rule: one thread, pinned to the core, which is otherwise idle.

#include <functional>

namespace distca::bench {

struct CoreTime {
  double seconds = 0;          // that passed
  double taken_seconds = 0;    // of the core
  double process_seconds = 0;  // of them, what this process's threads were charged for
};

/// Runs `work` on the calling thread, beside the counter. `meet` is called before each of the two
/// measurements, of the idle core and of `work`: a barrier where several cores are measured at
/// once.
CoreTime core_time_of(const std::function<void()>& work, const std::function<void()>& meet);

}  // namespace distca::bench
