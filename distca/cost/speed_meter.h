#pragma once
// Speeds from measured steps: smoothed, rounded to integers and held still, so that noise changes
// no plan. Integers only: the same samples give the same speeds on every rank. One thread.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/cost/speeds.h"

namespace distca {

/// What one rank did in one step, and how long that took: elapsed, for the processor time of a rank
/// that shares its core shows nothing.
struct RankSample {
  int64_t linear_ns = 0;     // all but core attention, exchange, sums over ranks and update
  int64_t attention_ns = 0;  // core attention
  int64_t tokens = 0;        // at home; 0: says nothing of linear work
  int64_t load = 0;          // of core attention, in the unit of load; 0: says nothing of attention
};

/// Smoothing: a mean over steps in which a step weighs 7/8 of the one after it (half as much after
/// 5.2 steps). A step whose rate is more than a quarter off the mean is held back: if the next two
/// are off on the same side too, the mean starts anew from these three, else they are forgotten.
/// Rounded to three digits.
/// Starved: a rank with less than a quarter of the mean load and half of the mean time in core
/// attention that is done an eighth before the last. What it took says little of its speed (a task
/// costs something whatever its size, no task says nothing), so it is not counted; after eight such
/// steps in a row the rank is taken for faster with every step, by a quarter of the way to the mean
/// of the others, until it has load enough to be measured. A slow rank that has what it can do is
/// not starved: it is done no earlier than the others.
/// Holding: new speeds are given out only when a rate is more than 3 % off the one given out last.
/// The first step is not counted (memory is allocated, threads start); speeds are first given out
/// after the third.
class SpeedMeter {
 public:
  /// `bytes_per_us`: what Speeds says of the wire.
  SpeedMeter(int num_ranks, int64_t bytes_per_us);

  /// Samples of all ranks. True if speeds() has changed: to values that hold from `step` + 2 on,
  /// for as a rule the next step is planned already.
  bool add(int64_t step, std::span<const RankSample> samples);
  /// Given out last. No ranks until speeds are first given out.
  const Speeds& speeds() const { return current_; }
  /// Those that hold for `step`: the one after the last that was added, or a later one.
  const Speeds& speeds_at(int64_t step) const;

  static constexpr int64_t kOffPermille = 250;
  static constexpr int64_t kHoldPermille = 30;
  static constexpr int64_t kFirstSteps = 3;  // before speeds are given out
  static constexpr int kBelieved = 3;        // steps in a row that are off
  static constexpr int kStarved = 8;         // steps in a row without load enough

 private:
  struct Rate {
    int64_t ns = 0;
    int64_t work = 0;
  };
  struct Smoothed {
    Rate mean, held_back;
    int num_held_back = 0;
    void add(const Rate& sample);
    void approach(int64_t ps_per_kload);   // from above
    int64_t rounded(int64_t scale) const;  // ns * scale / work
  };
  std::vector<bool> starved(std::span<const RankSample> samples) const;
  void add_attention(std::span<const RankSample> samples);
  static bool off(const Rate& rate, const Rate& mean);
  static bool above(const Rate& rate, const Rate& mean);

  std::vector<Smoothed> linear_, attention_;  // [ranks]
  std::vector<int> steps_starved_;            // [ranks] in a row
  int64_t steps_ = 0;
  Speeds current_;  // given out last
  Speeds before_;   // until current_.from_step
};

}  // namespace distca
