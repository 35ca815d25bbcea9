#include "distca/comm/clock_offset.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "distca/comm/collectives.h"
#include "distca/comm/tags.h"

namespace distca {
namespace {

constexpr int kRoundTrips = 32;
constexpr double kMostDrift = 1e-3;  // clocks gain millionths; what is above went wrong
constexpr std::string_view kOperation = "clock alignment";

void answer(Communicator& group, int rank, const std::function<double()>& clock) {
  for (int i = 0; i < kRoundTrips; ++i) {
    std::byte question[1];
    swap_bytes(group, rank, kClockTag, {}, question, kOperation);
    const double now = clock();
    swap_bytes(group, rank, kClockTag, std::as_bytes(std::span(&now, 1)), {}, kOperation);
  }
}

ClockReading ask(Communicator& group, const std::function<double()>& clock) {
  ClockReading best{.uncertainty_s = HUGE_VAL};
  for (int i = 0; i < kRoundTrips; ++i) {
    const std::byte question[1] = {};
    double there = 0;
    const double begin = clock();
    swap_bytes(group, 0, kClockTag, question, std::as_writable_bytes(std::span(&there, 1)),
               kOperation);
    const double end = clock(), middle = begin + (end - begin) / 2;
    if ((end - begin) / 2 >= best.uncertainty_s) continue;
    best = {.at_s = middle, .offset_s = there - middle, .uncertainty_s = (end - begin) / 2};
  }
  return best;
}

}  // namespace

ClockReading read_clock_offset(Communicator& group, const std::function<double()>& clock) {
  if (group.rank() != 0) return ask(group, clock);
  for (int rank = 1; rank < group.size(); ++rank) answer(group, rank, clock);
  return {.at_s = clock(), .offset_s = 0, .uncertainty_s = 0};
}

AlignedClock::AlignedClock(const ClockReading& before, const ClockReading& after)
    : before_(before), after_(after) {
  const double elapsed = after.at_s - before.at_s, gained = after.offset_s - before.offset_s;
  // Over a short time the readings' noise is larger than any drift can be.
  if (elapsed > 0) drift_ = std::clamp(gained / elapsed, -kMostDrift, kMostDrift);
  missed_s_ = std::abs(gained - drift_ * elapsed);
}

double AlignedClock::on_rank_0(double mine_s) const {
  return mine_s + before_.offset_s + drift_ * (mine_s - before_.at_s);
}

double AlignedClock::uncertainty_s() const {
  return std::max(before_.uncertainty_s, after_.uncertainty_s + missed_s_);
}

}  // namespace distca
