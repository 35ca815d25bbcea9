#include "distca/train/run_state.h"

#include <fmt/format.h>

namespace distca {

std::string RunState::stopped_by(const std::string& signal) const {
  const int64_t steps = steps_;
  const std::string weights = output_dir_ + "/model.safetensors";
  const std::string begin = fmt::format("stopped by {} ", signal);
  switch (stage_.load()) {
    case Stage::kTraining:
      break;
    case Stage::kSaving:
      return begin + fmt::format("while it saved after step {} of {}: {} is whole or as it was",
                                 steps, total_steps_, weights);
    case Stage::kSaved:
      return begin + fmt::format("after step {} of {}; the weights are saved in {}", steps,
                                 total_steps_, weights);
  }
  constexpr const char* kWhen = "no weights of it are saved (they are written at the end of a run)";
  if (steps == 0)
    return begin + fmt::format("before the end of step 1 of {}; {}", total_steps_, kWhen);
  return begin + fmt::format("after step {} of {}; {}; {}/metrics.jsonl has {} step{}", steps,
                             total_steps_, kWhen, output_dir_, steps, steps == 1 ? "" : "s");
}

}  // namespace distca
