#pragma once
// The batches of a run in the order of their use: a step's, then the validation ones where they are
// due.
//
//     StepBatches batches(config, data, split, /*first_step=*/1);
//     while (const auto batch = batches.next()) ...
//
// Thread rule: next() belongs to the planning thread; any thread may call the others.

#include <cstdint>
#include <optional>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/train/config.h"
#include "distca/train/plan_ahead.h"

namespace distca {

class StepBatches {
 public:
  /// `first_step`: step s trains on batch s - 1, wherever a run begins.
  StepBatches(const Config& config, const IndexedDataset& data, const DocumentSplit& split,
              int64_t first_step);

  /// Nothing after the batches of the last step.
  std::optional<StepBatch> next();
  /// Whether the validation loss is measured after this step.
  bool evaluates(int64_t step) const;
  /// How many batches that takes.
  size_t num_validation() const { return validation_.size(); }

 private:
  const Config& config_;
  BatchStream stream_;
  const std::vector<Batch> validation_;
  int64_t first_step_;
  int64_t steps_begun_;
  size_t validation_left_ = 0;
};

}  // namespace distca
