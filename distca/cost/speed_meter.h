#pragma once
// Turns measured step times into speeds. The times are smoothed, rounded to integers and held
// still, so that noise changes no plan. Only integers are used, so the same samples give the same
// speeds on every rank.
//
//   SpeedMeter meter(num_ranks, /*bytes_per_us=*/0);
//   meter.add(step, samples);  // std::vector<RankSample> of all ranks
//   const Speeds& speeds = meter.speeds_at(step + 1);
//
// A meter belongs to one thread.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/cost/speeds.h"

namespace distca {

/// The work of one rank in one step, and how long it took. Times are elapsed times, because the
/// processor time of a rank does not show that another program shares its core.
struct RankSample {
  int64_t linear_ns = 0;     // all but core attention, waiting, sums over ranks and update
  int64_t attention_ns = 0;  // core attention
  int64_t tokens = 0;        // tokens at home; with 0, the sample says nothing about linear work
  /// The load of core attention, in the unit in which plans count load (pairs or ns). 0 means that
  /// the sample says nothing about attention.
  int64_t load = 0;
  // Times that a meter does not count:
  int64_t exchange_ns = 0;  // the part of linear_ns that exchanges took: packing, issuing, landing
  int64_t waited_ns = 0;    // for messages, before gradients are summed
};

/// How a meter treats samples:
/// - Smoothing. A rate (time for each token at home, or for each unit of load) is a mean over
///   steps, in which a step weighs 7/8 as much as the one after it (half as much after 5.2 steps).
///   A step whose rate is more than a quarter off the mean is held back. If the next two steps are
///   off on the same side too, the mean starts anew from these three; otherwise they are forgotten.
///   Rates are rounded to three digits.
/// - Starved ranks. A rank is starved if it has less than a quarter of the mean load, spends less
///   than half of the mean time in core attention, and is done an eighth before the last rank. Its
///   time says little about its speed, because a task costs something however small it is, and
///   without tasks there is no time. So its attention time is not counted. From the eighth such
///   step in a row on, every step takes the rank for faster, by a quarter of the way to the mean of
///   the others, until it has enough load to be measured. A slow rank with as much load as it can
///   handle is not starved: it is done no earlier than the others.
/// - Holding. New speeds are given out only when a rate is more than 3 % off the one that was given
///   out last.
/// - Start. The first step is not counted, because memory is allocated and threads start in it.
///   Speeds are first given out with the third step.
class SpeedMeter {
 public:
  /// `bytes_per_us` is copied to Speeds::bytes_per_us; it is not measured here.
  SpeedMeter(int num_ranks, int64_t bytes_per_us);

  /// Takes the samples of all ranks. Returns true if speeds() has changed. The new speeds hold from
  /// `step` + 2 on, because as a rule the next step is planned already.
  bool add(int64_t step, std::span<const RankSample> samples);
  /// The speeds that were given out last. Before the first are given out, they have no ranks.
  const Speeds& speeds() const { return current_; }
  /// The speeds that hold for `step`, which is the one after the last step added, or a later one.
  const Speeds& speeds_at(int64_t step) const;

  /// Returns the state that a checkpoint keeps, as numbers.
  std::vector<int64_t> state() const;
  /// Goes on from what another meter's state() gave. Returns false and changes nothing if that one
  /// had another number of ranks.
  bool restore(std::span<const int64_t> state);

  /// How far off a rate may be, in thousandths: before a step is held back, and before new speeds
  /// are given out.
  static constexpr int64_t kOffPermille = 250;
  static constexpr int64_t kHoldPermille = 30;
  static constexpr int64_t kFirstSteps = 3;  // the step with which speeds are first given out
  static constexpr int kBelieved = 3;        // steps in a row that are off, until they are believed
  static constexpr int kStarved = 8;  // starved steps in a row, until a rank is taken for faster

 private:
  struct Rate {
    int64_t ns = 0;
    int64_t work = 0;
  };
  struct Smoothed {
    Rate mean, held_back;
    int num_held_back = 0;
    void add(const Rate& sample);
    void approach(int64_t ps_per_kload);   // only from above: the rate is lowered
    int64_t rounded(int64_t scale) const;  // ns * scale / work
  };
  /// Calls `visit` with every number of the state, in order.
  template <typename Meter, typename Visit>
  static void visit_state(Meter& meter, Visit visit);
  std::vector<bool> starved(std::span<const RankSample> samples) const;
  void add_attention(std::span<const RankSample> samples);
  static bool off(const Rate& rate, const Rate& mean);
  static bool above(const Rate& rate, const Rate& mean);

  std::vector<Smoothed> linear_, attention_;  // [ranks]
  std::vector<int> steps_starved_;            // [ranks] in a row
  int64_t steps_ = 0;
  Speeds current_;  // given out last
  Speeds before_;   // hold until current_.from_step
};

/// [ranks] For how many seconds of a step each rank waited: for messages of core attention and of
/// other stages, and, when it had nothing left to compute, for the last rank.
/// Ignores: waiting for the sum of gradients itself, which all do alike.
std::vector<double> seconds_waited(std::span<const RankSample> ranks);

}  // namespace distca
