#pragma once
// Where a run is, for whoever stops it. Any thread.

#include <atomic>
#include <cstdint>
#include <string>

namespace distca {

class RunState {
 public:
  RunState(std::string output_dir, int64_t total_steps)
      : output_dir_(std::move(output_dir)), total_steps_(total_steps) {}

  /// Step `step` has its line in metrics.jsonl; from 1.
  void step_done(int64_t step) { steps_ = step; }
  void begin_saving() { stage_ = Stage::kSaving; }
  /// The weights are on disk.
  void saved() { stage_ = Stage::kSaved; }

  /// One line: at which step the run was stopped by "SIGINT", what is saved and where.
  std::string stopped_by(const std::string& signal) const;

 private:
  enum class Stage { kTraining, kSaving, kSaved };

  const std::string output_dir_;
  const int64_t total_steps_;
  std::atomic<int64_t> steps_ = 0;
  std::atomic<Stage> stage_ = Stage::kTraining;
};

}  // namespace distca
