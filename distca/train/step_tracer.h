#pragma once
// Records some steps of a run (train.trace): every rank its own events, put on one clock and
// gathered to rank 0 after the last of them, and written as one file (trace/chrome.h) at the end.
// Thread rule: one thread a rank; all ranks make the same calls in the same order.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/comm/clock_offset.h"
#include "distca/comm/communicator.h"
#include "distca/trace/recorder.h"
#include "distca/train/config.h"

namespace distca {

/// Refuses a file that could not be written and steps that will not come: Error(kConfig). Writes
/// nothing.
void check_trace(const Config& config);

class StepTracer {
 public:
  StepTracer(const Config& config, Communicator& comm, int num_workers);

  void begin_step(int64_t step);
  /// Where the step's events go; null while no step is traced.
  TraceRecorder* recorder() { return tracing_ ? &recorder_ : nullptr; }
  /// After the last traced step rank 0 gets what all have recorded.
  void end_step();
  /// Rank 0 writes the file, if steps were traced. It may take longer than a wait may: once nobody
  /// waits for rank 0 any more.
  void write();

 private:
  bool on() const { return !config_.train.trace.empty(); }
  ClockReading read_clock();
  void gather();

  const Config& config_;
  Communicator& comm_;
  int num_workers_;
  TraceRecorder recorder_;
  bool tracing_ = false;
  int64_t step_ = 0;
  double step_begin_s_ = 0;
  double origin_s_ = 0;      // on rank 0's clock
  bool same_clock_ = false;  // as rank 0
  ClockReading before_;
  std::vector<std::string> gathered_;  // on rank 0, by rank: a trace of that rank alone
};

}  // namespace distca
