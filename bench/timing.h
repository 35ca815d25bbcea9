#pragma once
// Cores that threads are pinned to.

#include <sched.h>

#include <span>
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

/// The calling thread, and those that it starts from now on.
inline void pin_to(std::span<const int> allowed) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : allowed) CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

inline void pin_to_this_core() {
  const int core = sched_getcpu();
  pin_to({&core, 1});
}

}  // namespace distca::bench
