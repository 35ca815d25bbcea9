#pragma once
// How much of a core something takes, whoever it is that runs: threads, the kernel's network code
// in interrupts (which it may count as somebody else's), switches between them. A thread of the
// lowest priority reads the clock again and again; where it could not, the core was taken from it.
// Thread rule: one thread, pinned to the core, which is otherwise idle.

#include <functional>

namespace distca::bench {

struct CoreTime {
  double seconds = 0;          // elapsed time
  double taken_seconds = 0;    // the core's time that somebody took: an idle core's timer, too
  double process_seconds = 0;  // charged to this process's threads, without the clock's reader
};

/// Runs `work` on the calling thread while another thread on the core reads the clock.
CoreTime core_time_of(const std::function<void()>& work);

}  // namespace distca::bench
