#pragma once
// Comparing how long two pieces of work take, on any machine and beside any other work.

#include <algorithm>
#include <functional>
#include <limits>

#include "distca/base/clock.h"

namespace distca::testing {

/// Whether `many` takes less than `most` times the processor time of `few`, in this thread. What
/// else the machine does lengthens a look, never shortens it, so the least of several looks in
/// turns counts, of up to 20 where that is needed.
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
