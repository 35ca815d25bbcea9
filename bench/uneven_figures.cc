#include "bench/uneven_figures.h"

#include <algorithm>

#include "distca/base/error.h"
#include "distca/base/statistics.h"

namespace distca::bench {

Rates ideal_seconds(const Rates& seconds, double machines, double left) {
  Rates ideal;
  for (const double of_round : seconds) ideal.push_back(of_round * machines / left);
  return ideal;
}

const Split& best_of(std::span<const Split> splits) {
  DISTCA_CHECK(!splits.empty(), "no splits");
  return *std::ranges::min_element(splits, {},
                                   [](const Split& split) { return median(split.seconds); });
}

Figure reweighted_figure(const Split& reweighted, const Split& again, const Split& best) {
  return figure_of(quotient(best.seconds, reweighted.seconds),
                   quotient(best.seconds, again.seconds), 1 / kReweightedBar);
}

}  // namespace distca::bench
