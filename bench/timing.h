#pragma once
// Absolute times: best of some rounds on one pinned thread.

#include <sched.h>

#include <algorithm>

#include "distca/base/clock.h"

namespace distca::bench {

inline void pin_to_this_core() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(sched_getcpu(), &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

template <typename Work>
double best_ms(int rounds, const Work& work) {
  double best = 1e300;
  for (int round = 0; round < rounds; ++round) {
    const Stopwatch watch;
    work();
    best = std::min(best, watch.seconds() * 1e3);
  }
  return best;
}

}  // namespace distca::bench
