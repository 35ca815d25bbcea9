#pragma once
// Step times of two workers of which one is slow, in figures. Plain values, any thread.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/figure.h"
#include "bench/rounds.h"

namespace distca::bench {

/// A split of core attention between a fast and a slow worker; [round].
struct Split {
  std::string name;
  Rates seconds = {};      // of a step
  Rates fast_share = {};   // of the load: what the fast worker computed
  Rates fast_waits = {};   // share of the step in which it waited for exchanges, and for the
  Rates slow_waits = {};   // other's gradients
  Rates taken_share = {};  // of the slow worker's core: what it was not given
};

/// Seconds that work takes on `left` machines' worth of speed if it takes `seconds` on `machines`
/// that do nothing else, evenly.
Rates ideal_seconds(const Rates& seconds, double machines, double left);

/// The one with the lowest median; splits are not empty.
const Split& best_of(std::span<const Split> splits);

/// Measured speeds' steps may take this many times as long as the best fixed split's.
constexpr double kReweightedBar = 1.05;

/// How fast the re-weighted split is beside the best fixed one: bar 1 / kReweightedBar. `again`: of
/// turns of its own in the same rounds.
Figure reweighted_figure(const Split& reweighted, const Split& again, const Split& best);

}  // namespace distca::bench
