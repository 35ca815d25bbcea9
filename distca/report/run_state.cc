#include "distca/report/run_state.h"

#include <fmt/format.h>

namespace distca {

void RunState::begin_steps(int64_t step, int64_t checkpoint) {
  steps_ = step;
  checkpoint_ = checkpoint;
  stage_ = Stage::kTraining;
}

bool RunState::request_stop(int signal) {
  if (stage_ == Stage::kStarting) return false;
  stop_signal_ = signal;
  return true;
}

std::string RunState::stopped_by(const std::string& signal) const {
  const int64_t steps = steps_, checkpoint = checkpoint_;
  const std::string weights = output_dir_ + "/model.safetensors";
  const std::string begin = fmt::format("stopped by {} ", signal);
  switch (stage_.load()) {
    case Stage::kStarting:
      return begin + "before the first step, with nothing new to save";
    case Stage::kTraining:
      break;
    case Stage::kSaving:
      return begin + fmt::format("while it saved after step {} of {}: {} is whole or as it was",
                                 steps, total_steps_, weights);
    case Stage::kSaved:
      return begin + fmt::format("after step {} of {}; the weights are saved in {}", steps,
                                 total_steps_, weights);
  }
  return begin +
         fmt::format(
             "at once after step {} of {}; {}; {}/metrics.jsonl has {} step{}", steps, total_steps_,
             checkpoint == 0 ? "no checkpoint of it is saved"
                             : fmt::format("the last checkpoint is that of step {}", checkpoint),
             output_dir_, steps, steps == 1 ? "" : "s");
}

}  // namespace distca
