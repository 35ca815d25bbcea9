#pragma once
// How far a run is, for the line that a process says when a signal stops it. Any thread may call
// all methods.

#include <atomic>
#include <cstdint>
#include <string>

namespace distca {

/// The state of one run. The trainer of rank 0 updates it.
class RunState {
 public:
  RunState(std::string output_dir, int64_t total_steps)
      : output_dir_(std::move(output_dir)), total_steps_(total_steps) {}

  /// The line of step `step`, which counts from 1, has been written to metrics.jsonl.
  void step_done(int64_t step) { steps_ = step; }
  /// The weights are about to be written.
  void begin_saving() { stage_ = Stage::kSaving; }
  /// The weights are on disk.
  void saved() { stage_ = Stage::kSaved; }

  /// One line that says at which step `signal` ("SIGINT", for example) stopped the run, and what is
  /// saved and where.
  std::string stopped_by(const std::string& signal) const;

 private:
  enum class Stage { kTraining, kSaving, kSaved };

  const std::string output_dir_;
  const int64_t total_steps_;
  std::atomic<int64_t> steps_ = 0;
  std::atomic<Stage> stage_ = Stage::kTraining;
};

}  // namespace distca
