#include "distca/train/run_faults.h"

#include <fmt/ranges.h>

#include <cmath>

namespace distca {

Error diverged(const Config& config, std::string_view what) {
  return Error(ErrorKind::kTraining, "{} not finite; lower optimizer.lr (now {})", what,
               config.optimizer.lr);
}

Error bad_step(const Config& config, int64_t step, const StepVerdict& verdict, int64_t num_skipped,
               std::string_view saved) {
  const bool initial = step == 1;  // the initial weights are no update's fault
  return Error(ErrorKind::kTraining, "step {}: {}; lower {} (now {}){}{}", step, verdict.words(),
               initial ? "model.initializer_range" : "optimizer.lr",
               initial ? config.model.initializer_range : config.optimizer.lr,
               num_skipped == 0 ? "" : fmt::format("; {} steps in a row were skipped", num_skipped),
               saved);
}

void check_same_start(const std::vector<int>& others, bool resumed) {
  DISTCA_THROW_IF(!others.empty(), ErrorKind::kConfig,
                  "rank{} {} {} other initial weights than rank 0: start the same version of "
                  "distca on all ranks",
                  others.size() > 1 ? "s" : "", fmt::join(others, ", "), resumed ? "read" : "drew");
}

void check_same_end(const std::vector<int>& others, const Config& config) {
  DISTCA_THROW_IF(
      !others.empty(), ErrorKind::kTraining,
      "rank{} {} ended with other weights than rank 0: from some step on each trained a "
      "model of its own; rank 0's is saved in {}, but is not what one worker would have "
      "trained; look for unlike or faulty machines",
      others.size() > 1 ? "s" : "", fmt::join(others, ", "), config.train.output_dir);
}

void check_last_validation(double loss, const Config& config) {
  DISTCA_THROW_IF(
      !std::isfinite(loss), ErrorKind::kTraining,
      "step {}: the validation loss is not finite; lower optimizer.lr (now {}); the weights "
      "are saved as they are in {}",
      config.train.steps, config.optimizer.lr, config.train.output_dir);
}

}  // namespace distca
