#pragma once
// Records some steps of a run (train.trace). Every rank records its own events. After the last
// traced step they are put on one clock and gathered to rank 0, which writes them as one file at
// the end of the run (trace/chrome.h). Thread rule: one thread a rank; all ranks make the same
// calls in the same order.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/comm/clock_offset.h"
#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/trace/chrome.h"
#include "distca/trace/recorder.h"

namespace distca {

/// Throws Error(kConfig) if the file could not be written, or if a run from the beginning ends
/// before the last step to be traced. Writes nothing.
void check_trace(const Config& config);

/// The traced steps of one run.
class StepTracer {
 public:
  /// `run`: the stage of each rank, and its index in its server. The file says nothing of either
  /// where there is only one.
  /// `goes_on_after`: the step of the checkpoint that a resumed run goes on from, else 0. Steps are
  /// counted from there, and none is traced where too few are left.
  StepTracer(const Config& config, Communicator& comm, const RunGrid& run, int64_t goes_on_after);

  /// Call it before every step.
  void begin_step(int64_t step);
  /// Where the events of the current step go; null if the step is not traced.
  TraceRecorder* recorder() { return tracing_ ? &recorder_ : nullptr; }
  /// From `begin_s` on, the current step has waited for something.
  void waited(std::string what, double begin_s);
  /// Call it after every step. After the last traced one, rank 0 gets what all ranks have recorded.
  void end_step();
  /// "", or a line that says why nothing is traced.
  std::string missing() const;
  /// On rank 0, writes the file if steps were traced. This may take longer than the timeout of a
  /// wait, so call it when nobody waits for rank 0 any more. Gives a line for the summary, or "".
  std::string write(const TraceKernel& kernel);

 private:
  ClockReading read_clock();
  void gather();

  const Config& config_;
  Communicator& comm_;
  const RunGrid run_;
  const int64_t last_, first_;  // steps to be traced; the last one is 0 if there are none
  TraceRecorder recorder_;
  bool tracing_ = false;
  int64_t step_ = 0;
  double step_begin_s_ = 0;
  double origin_s_ = 0;      // on rank 0's clock
  bool same_clock_ = false;  // true if this rank reads the same clock as rank 0
  ClockReading before_;
  // On rank 0 only: [ranks] how each rank's clock was aligned, and its chrome_events.
  std::vector<TraceRank> ranks_;
  std::vector<std::string> gathered_;
};

}  // namespace distca
