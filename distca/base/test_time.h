#pragma once
// Compares how long two pieces of work take, on any machine and while any other work runs.

#include <algorithm>
#include <functional>
#include <limits>

#include "distca/base/clock.h"

namespace distca::testing {

/// Returns true if `many` takes less than `most` times the processor time of `few`, in this thread.
/// Other work on the machine lengthens a measurement and never shortens it. So the two are measured
/// in turns, 3 to 20 times as needed, and the shortest time of each counts.
inline bool takes_less_than(double most, const std::function<void()>& many,
                            const std::function<void()>& few) {
  double least[2] = {std::numeric_limits<double>::infinity(),
                     std::numeric_limits<double>::infinity()};
  const auto look = [&](int which, const std::function<void()>& work) {
    const double begin = thread_processor_seconds();
    work();
    least[which] = std::min(least[which], thread_processor_seconds() - begin);
  };
  for (int round = 0; round < 20; ++round) {
    look(0, few);
    look(1, many);
    if (round >= 2 && least[1] < most * least[0]) return true;
  }
  return false;
}

}  // namespace distca::testing
