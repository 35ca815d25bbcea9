#pragma once
// One clock for all ranks: steady clocks of machines have different starts and run a few
// millionths faster or slower. Each rank asks rank 0 for the time often and takes the answer that
// came back soonest: rank 0 read its clock somewhere between question and answer, so their middle
// is right to within half of that time.

#include <functional>

#include "distca/base/clock.h"
#include "distca/comm/communicator.h"

namespace distca {

/// A rank's clock compared with rank 0's at one moment, in seconds.
struct ClockReading {
  double at_s = 0;           // on this rank's clock
  double offset_s = 0;       // added to this rank's clock: rank 0's
  double uncertainty_s = 0;  // the offset is right to within this
};

/// All ranks call it together; it takes 32 round trips a rank. Errors: as Communicator.
ClockReading read_clock_offset(Communicator& group,
                               const std::function<double()>& clock = steady_seconds);

/// A time of this rank's clock on rank 0's, by the line through two readings: right to within
/// uncertainty_s() in between.
class AlignedClock {
 public:
  AlignedClock(const ClockReading& before, const ClockReading& after);
  double on_rank_0(double mine_s) const;
  /// The change of the offset in a second: at most a thousandth, which clocks stay far below. Where
  /// two readings say more, the line misses the second, and the uncertainty has that too.
  double drift() const { return drift_; }
  double uncertainty_s() const;

 private:
  ClockReading before_, after_;
  double drift_ = 0;
  double missed_s_ = 0;  // between the line and `after`
};

}  // namespace distca
