#include "bench/training_judge.h"

#include <algorithm>
#include <cmath>

#include "distca/base/error.h"
#include "distca/base/statistics.h"

namespace distca::bench {
namespace {

Rates difference(const Rates& left, const Rates& right) {
  DISTCA_CHECK_EQ(left.size(), right.size());
  Rates result(left);
  for (size_t i = 0; i < result.size(); ++i) result[i] -= right[i];
  return result;
}

}  // namespace

size_t fastest(const std::vector<Rates>& seconds) {
  const auto slower = [](const Rates& a, const Rates& b) { return median(a) < median(b); };
  return static_cast<size_t>(std::ranges::min_element(seconds, slower) - seconds.begin());
}

IdleJudgement judge_idle(const Rates& ours, const Rates& ours_again, const Rates& control) {
  IdleJudgement judgement{.above = estimate(difference(ours, control)),
                          .again = estimate(difference(ours, ours_again))};
  const Estimate &above = judgement.above, &again = judgement.again;
  if (ours.size() < kLeastRounds) return judgement;
  if (above.low <= kIdleBar && kIdleBar <= above.high) return judgement;
  const double noise = std::max(std::fabs(again.low), std::fabs(again.high));
  if (noise > std::fabs(above.median - kIdleBar)) return judgement;
  judgement.decision = above.median <= kIdleBar ? Decision::kReached : Decision::kMissed;
  return judgement;
}

Figure times_ours(const Rates& rival, const Rates& ours, const Rates& ours_again) {
  return {.reached = estimate_ratio(rival, ours),
          .control = estimate_ratio(ours_again, ours),
          .bar = 1,
          .rounds = static_cast<int>(ours.size())};
}

std::string_view conclusion(const Figure& times_ours) {
  switch (times_ours.verdict()) {
    case Decision::kReached:
      return "ours is faster";
    case Decision::kMissed:
      return "the rival is faster";
    default:
      return verdict_name(Decision::kNotDecidable);
  }
}

}  // namespace distca::bench
