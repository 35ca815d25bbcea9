#pragma once
// Comparisons that a noisy machine does not decide: contenders take turns within a round, and what
// bench/report.py shows is the median over rounds of the ratio within a round, with its interval.
// Not thread-safe: times are of the machine.

#include <functional>
#include <string>
#include <vector>

#include "distca/base/clock.h"

namespace distca::bench {

struct Contender {
  double flops = 0;                 // floating-point operations of one call
  std::function<double()> seconds;  // calls it once
};

enum class Clock {
  kThread,  // processor time of the calling thread: turns of other programs on its core do not
            // count
  kWall,    // for work on several threads
};

/// The seconds that a call of `work` takes.
template <typename Work>
std::function<double()> timed(Clock clock, Work work) {
  return [clock, work = std::move(work)] {
    const auto now = clock == Clock::kThread ? thread_processor_seconds : steady_seconds;
    const double start = now();
    work();
    return now() - start;
  };
}

/// GFLOP/s of one contender in each round.
using Rates = std::vector<double>;

/// Each contender is called before the rounds, then in every round as often as it takes to
/// fill `least_seconds`; where that is several times, once more before, which does not count. A
/// round begins with another contender each time.
std::vector<Rates> interleaved_rates(const std::vector<Contender>& contenders, int rounds,
                                     double least_seconds);

}  // namespace distca::bench
