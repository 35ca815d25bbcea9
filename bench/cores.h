#pragma once
// Cores that threads are pinned to.

#include <sched.h>

#include <vector>

namespace distca::bench {

/// Cores that the calling thread may use, ascending.
inline std::vector<int> allowed_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  std::vector<int> allowed;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) allowed.push_back(core);
  }
  return allowed;
}

/// Pins the calling thread, and those that it starts from now on.
inline void pin_to(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

}  // namespace distca::bench
