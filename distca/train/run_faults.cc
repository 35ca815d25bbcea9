#include "distca/train/run_faults.h"

#include <cmath>

#include "distca/base/text.h"

namespace distca {

Error diverged(const Config& config, std::string_view what, std::string_view saved) {
  return Error(ErrorKind::kTraining, "{} not finite; lower optimizer.lr (now {}){}", what,
               config.optimizer.lr, saved);
}

Error bad_step(const Config& config, int64_t step, const StepOutcome& outcome, int64_t num_skipped,
               bool all_bad, std::string_view saved) {
  const bool initial = step == 1;  // the initial weights are no update's fault
  const bool skips = config.train.bad_step == Config::Train::BadStep::kSkip;
  const std::string advice =
      all_bad
          ? fmt::format(
                "no step since --resume was good, so either the state that it went on "
                "from is spoilt, which a lower optimizer.lr (now {}) avoids, or a "
                "batch is bad{}",
                config.optimizer.lr, skips ? "" : ", which train.bad_step=skip leaves out")
          : fmt::format("lower {} (now {})", initial ? "model.initializer_range" : "optimizer.lr",
                        initial ? config.model.initializer_range : config.optimizer.lr);
  return Error(ErrorKind::kTraining, "step {}: {}; {}{}{}", step, outcome.describe(), advice,
               num_skipped == 0 ? "" : fmt::format("; {} steps in a row were skipped", num_skipped),
               saved);
}

void check_last_update(const std::vector<at::Tensor>& weights, const Config& config) {
  if (const int64_t bad = num_not_finite(weights); bad > 0) {
    throw diverged(config,
                   fmt::format("the last update left {} weights that are", with_thousands(bad)));
  }
}

void check_same_start(const OtherRanks& others, const RunGrid& run, bool resumed) {
  if (others.empty()) return;
  const auto [ranks, firsts, part] = name_others(others, run);
  throw Error(
      ErrorKind::kConfig,
      "{} {} other initial weights{} than {}: start the same version of distca on all ranks", ranks,
      resumed ? "read" : "drew", part, firsts);
}

void check_same_end(const OtherRanks& others, const RunGrid& run, const Config& config) {
  if (others.empty()) return;
  const auto [ranks, firsts, part] = name_others(others, run);
  throw Error(
      ErrorKind::kTraining,
      "{} ended with other weights{} than {}: from some step on each trained a model of its "
      "own; {} saved in {}, but is not what one worker would have trained; look for unlike "
      "or faulty machines",
      ranks, part, firsts, run.divides_model() ? "what the first replicas hold is" : "rank 0's is",
      config.train.output_dir);
}

void check_last_validation(double loss, const Config& config) {
  if (!std::isfinite(loss))
    throw diverged(config, fmt::format("step {}: the validation loss is", config.train.steps),
                   "; the weights are saved as they are in " + config.train.output_dir);
}

}  // namespace distca
