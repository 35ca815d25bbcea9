#include "distca/train/step_batches.h"

#include "distca/train/data_split.h"

namespace distca {

StepBatches::StepBatches(const Config& config, const IndexedDataset& data,
                         const DocumentSplit& split, int64_t first_step)
    : config_(config),
      stream_(data.document_lengths(), split.train, config.batch),
      validation_(validation_batches(config, data, split)),
      first_step_(first_step),
      steps_begun_(first_step - 1) {
  stream_.seek(first_step - 1);
}

bool StepBatches::evaluates(int64_t step) const {
  const int64_t every = config_.train.validation_every;
  return !validation_.empty() && (step == config_.train.steps || (every > 0 && step % every == 0));
}

std::optional<StepBatch> StepBatches::next() {
  if (validation_left_ > 0) {
    return StepBatch{.batch = validation_[validation_.size() - validation_left_--],
                     .kind = ProgramRequest::Kind::kEvaluate};
  }
  if (steps_begun_ == config_.train.steps) return std::nullopt;
  if (evaluates(++steps_begun_)) validation_left_ = validation_.size();
  return StepBatch{.batch = stream_.next(), .checks_all_ranks = steps_begun_ == first_step_};
}

}  // namespace distca
