#pragma once
// What bench/training concludes from its rounds. Plain values, any thread.

#include <cstddef>
#include <string_view>
#include <vector>

#include "bench/figure.h"
#include "bench/rounds.h"

namespace distca::bench {

/// The arm with the lowest median over rounds; the first of equals. `seconds`: [arm][round].
size_t fastest(const std::vector<Rates>& seconds);

/// Ours may stand idle this much more of a step than equal documents do.
constexpr double kIdleBar = 0.03;

/// Idle shares of a step against each other, round by round.
struct IdleJudgement {
  Estimate above;  // ours less the control's
  Estimate again;  // ours less ours in turns of its own
  /// Not decidable from fewer than kLeastRounds rounds, where kIdleBar lies within `above`, or
  /// where `again` reaches further from 0 than the median is from the bar.
  Decision decision = Decision::kNotDecidable;
};
IdleJudgement judge_idle(const Rates& ours, const Rates& ours_again, const Rates& control);

/// A rival's seconds over ours, with ours over ours again as the control: "ours is faster", "the
/// rival is faster", "not decidable here".
std::string_view conclusion(const Figure& times_ours);
Figure times_ours(const Rates& rival, const Rates& ours, const Rates& ours_again);

}  // namespace distca::bench
