#include "bench/figure.h"

#include <algorithm>
#include <cmath>

namespace distca::bench {

std::string_view verdict_name(Decision verdict) {
  switch (verdict) {
    case Decision::kShown:
      return "";
    case Decision::kReached:
      return "reached";
    case Decision::kMissed:
      return "missed";
    case Decision::kNotDecidable:
      break;
  }
  return "not decidable here";
}

Decision Figure::verdict() const {
  if (bar == 0) return Decision::kShown;
  if (rounds < kLeastRounds) return Decision::kNotDecidable;
  if (reached.low <= bar && bar <= reached.high) return Decision::kNotDecidable;
  const double margin = std::fabs(reached.median / bar - 1);
  const double noise = std::max(std::fabs(control.low - 1), std::fabs(control.high - 1));
  if (noise > margin) return Decision::kNotDecidable;
  return reached.median >= bar ? Decision::kReached : Decision::kMissed;
}

Figure figure_of(const Rates& values, const Rates& again, double bar) {
  return {.reached = estimate(values),
          .control = estimate_ratio(values, again),
          .bar = bar,
          .rounds = static_cast<int>(values.size())};
}

void Tally::add(Decision verdict) {
  reached += verdict == Decision::kReached ? 1 : 0;
  missed += verdict == Decision::kMissed ? 1 : 0;
  not_decidable += verdict == Decision::kNotDecidable ? 1 : 0;
}

}  // namespace distca::bench
