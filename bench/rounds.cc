#include "bench/rounds.h"

#include <algorithm>
#include <cmath>

namespace distca::bench {
std::vector<Rates> interleaved_rates(const std::vector<Contender>& contenders, int rounds,
                                     double least_seconds) {
  std::vector<Rates> rates(contenders.size());
  std::vector<int> calls;
  for (const Contender& contender : contenders) {
    double first = contender.seconds();
    if (first < least_seconds) first = contender.seconds();  // its own caches warm
    const double fill = std::ceil(least_seconds / std::max(first, 1e-9));
    calls.push_back(static_cast<int>(std::clamp(fill, 1.0, 1e6)));
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t turn = 0; turn < contenders.size(); ++turn) {
      const size_t at = (turn + static_cast<size_t>(round)) % contenders.size();
      double seconds = 0;
      if (calls[at] > 1) contenders[at].seconds();  // after another's data in the caches
      for (int call = 0; call < calls[at]; ++call) seconds += contenders[at].seconds();
      rates[at].push_back(contenders[at].flops * calls[at] / seconds / 1e9);
    }
  }
  return rates;
}

}  // namespace distca::bench
