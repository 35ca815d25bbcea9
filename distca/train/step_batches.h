#pragma once
// The batches of a run in the order of their use: a step's, then the validation ones where they are
// due.
//
//     StepBatches batches(config, data, /*first_step=*/1);
//     while (const auto batch = batches.next()) ...
//
// Thread rule: next() belongs to the planning thread; any thread may call the others.

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/data_blend.h"
#include "distca/config/config.h"
#include "distca/train/plan_ahead.h"

namespace distca {

class StepBatches {
 public:
  /// `first_step`: step s trains on batch s - 1, wherever a run begins. If that is not the first,
  /// restore() comes before next().
  StepBatches(const Config& config, const DataBlend& data, int64_t first_step);

  /// Goes on where a checkpoint stood. `trainer` is its object that has what state_after() gave as
  /// "data". Throws Error(kCheckpoint) for an older checkpoint, which has other documents.
  void restore(const JsonField& trainer);
  /// Where the data stood after a step: the one before the first, or one of the last three that
  /// next() gave the batch of.
  Json state_after(int64_t step) const;
  const DocumentSplit& split() const { return split_; }

  /// The last step of this start: train.steps, unless end_after() has made it an earlier one.
  int64_t last_step() const { return last_step_; }
  /// Makes `step`, whose batch was given and whose validation batches were not used, the last one:
  /// next() gives the validation batches from their first on, and then nothing. Nobody may be in
  /// next() meanwhile.
  void end_after(int64_t step);

  /// Nothing after the batches of the last step. Where no step is left, the validation ones come.
  std::optional<StepBatch> next();
  /// Returns true if the validation loss is measured after this step.
  bool evaluates(int64_t step) const;
  /// Returns true if the validation loss is measured though no step is left.
  bool evaluates_alone() const;
  /// How many batches that takes.
  size_t num_validation() const { return validation_.size(); }

 private:
  void remember_state();

  const Config& config_;
  const DocumentSplit split_;
  BatchStream stream_;
  const std::vector<Batch> validation_;
  int64_t first_step_, last_step_;
  int64_t steps_begun_;
  size_t validation_left_ = 0;

  mutable std::mutex mutex_;
  std::map<int64_t, Json> states_;  // after a step; of the last ones
};

}  // namespace distca
