#pragma once
// Comparisons that a noisy machine does not decide: contenders take turns within a round, and what
// bench/report.py shows is the median over rounds of the ratio within a round, with its interval.
// Not thread-safe: times are of the machine.

#include <functional>
#include <vector>

namespace distca::bench {

struct Contender {
  double flops = 0;                 // floating-point operations of one call
  std::function<double()> seconds;  // calls it once
};

/// GFLOP/s of one contender in each round.
using Rates = std::vector<double>;

/// Each contender is called before the rounds, then in every round as often as it takes to
/// fill `least_seconds`; where that is several times, once more before, which does not count. A
/// round begins with another contender each time.
std::vector<Rates> interleaved_rates(const std::vector<Contender>& contenders, int rounds,
                                     double least_seconds);

}  // namespace distca::bench
