#pragma once
// A measured figure against its bar, and whether it decides anything. Plain values, any thread.

#include <string_view>

#include "bench/rounds.h"

namespace distca::bench {

enum class Decision { kShown, kReached, kMissed, kNotDecidable };
std::string_view verdict_name(Decision verdict);  // "" of what is only shown

/// Fewer decide nothing.
constexpr int kLeastRounds = 15;

/// One figure against its bar. `control`: the figure against itself, measured again in the same
/// rounds, so that it holds the noise of everything that the figure is made of.
struct Figure {
  Estimate reached;
  Estimate control;
  double bar = 0;  // 0: shown, not judged
  int rounds = 0;

  /// Not decidable from fewer than kLeastRounds rounds, where the bar lies in the figure's own
  /// interval, or where the control's interval reaches further from 1 than the figure is from its
  /// bar.
  Decision verdict() const;
};

/// `again`: the same figure's values, of turns of their own in the same rounds.
Figure figure_of(const Rates& values, const Rates& again, double bar);

/// How many of each verdict.
struct Tally {
  int reached = 0;
  int missed = 0;
  int not_decidable = 0;
  int judged() const { return reached + missed + not_decidable; }
  void add(Decision verdict);
};

}  // namespace distca::bench
