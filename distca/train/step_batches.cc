#include "distca/train/step_batches.h"

#include "distca/base/error.h"
#include "distca/forecast/data_split.h"

namespace distca {

StepBatches::StepBatches(const Config& config, const DataBlend& data, int64_t first_step)
    : config_(config),
      split_(split_data(config, data)),
      stream_(training_stream(config, data, split_)),
      validation_(validation_batches(config, data, split_)),
      first_step_(first_step),
      last_step_(config.train.steps),
      steps_begun_(first_step - 1),
      validation_left_(evaluates_alone() ? validation_.size() : 0) {
  remember_state();
}

void StepBatches::restore(const JsonField& trainer) {
  DISTCA_THROW_IF(
      !trainer.has("data"), ErrorKind::kCheckpoint,
      "--resume: the checkpoint is of a version of distca that set validation documents "
      "aside by their number, not by their tokens: the run would go on with other "
      "documents; start a new one");
  stream_.restore(trainer["data"]);
  remember_state();
}

void StepBatches::remember_state() {
  constexpr size_t kLast = 3;
  const std::scoped_lock lock(mutex_);
  states_[steps_begun_] = stream_.state();
  if (states_.size() > kLast) states_.erase(states_.begin());
}

Json StepBatches::state_after(int64_t step) const {
  const std::scoped_lock lock(mutex_);
  return states_.at(step);
}

bool StepBatches::evaluates(int64_t step) const {
  const int64_t every = config_.train.validation_every;
  return !validation_.empty() && (step == last_step_ || (every > 0 && step % every == 0));
}

bool StepBatches::evaluates_alone() const {
  return first_step_ > last_step_ && evaluates(last_step_);
}

void StepBatches::end_after(int64_t step) {
  last_step_ = step;
  validation_left_ = validation_.size();
}

std::optional<StepBatch> StepBatches::next() {
  if (validation_left_ > 0) {
    return StepBatch{.batch = validation_[validation_.size() - validation_left_--],
                     .kind = ProgramRequest::Kind::kEvaluate};
  }
  if (steps_begun_ >= last_step_) return std::nullopt;
  if (evaluates(++steps_begun_)) validation_left_ = validation_.size();
  StepBatch batch{.batch = stream_.next(), .checks_all_ranks = steps_begun_ == first_step_};
  remember_state();
  return batch;
}

}  // namespace distca
