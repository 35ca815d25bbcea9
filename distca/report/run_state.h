#pragma once
// How far a run is, and whether somebody has asked it to stop. A process says by it what a signal
// has stopped (base/stop_signals.h). Any thread may call all methods.

#include <atomic>
#include <cstdint>
#include <string>

namespace distca {

/// The state of one run, in one process.
class RunState {
 public:
  RunState(std::string output_dir, int64_t total_steps)
      : output_dir_(std::move(output_dir)), total_steps_(total_steps) {}

  /// Begins the steps of a run that goes on from `step`, which is 0 in a new run. `checkpoint` is
  /// the step of the last complete checkpoint in its folder, or 0 if there is none. From now on, a
  /// signal is a request.
  void begin_steps(int64_t step, int64_t checkpoint);
  /// The line of step `step`, which counts from 1, has been written to metrics.jsonl.
  void step_done(int64_t step) { steps_ = step; }
  /// The checkpoint of step `step` is complete.
  void checkpoint_complete(int64_t step) { checkpoint_ = step; }
  /// The weights are about to be written.
  void begin_saving() { stage_ = Stage::kSaving; }
  /// The weights are on disk.
  void saved() { stage_ = Stage::kSaved; }

  /// Asks the run to save and to end after the step that is under way. Returns false if it has not
  /// begun to train, so that there is nothing to save.
  bool request_stop(int signal);
  /// The signal by which a stop was requested. 0 means that there was no request.
  int stop_requested() const { return stop_signal_; }

  /// One line that says at which step `signal` ("SIGINT", for example) ended the run at once, and
  /// what is saved and where.
  std::string stopped_by(const std::string& signal) const;

 private:
  enum class Stage { kStarting, kTraining, kSaving, kSaved };

  const std::string output_dir_;
  const int64_t total_steps_;
  std::atomic<int64_t> steps_ = 0;
  std::atomic<int64_t> checkpoint_ = 0;
  std::atomic<int> stop_signal_ = 0;
  std::atomic<Stage> stage_ = Stage::kStarting;
};

}  // namespace distca
