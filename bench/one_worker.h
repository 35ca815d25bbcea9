#pragma once
// One worker with everything that a training step of a configuration needs, and clocks around the
// step: what benchmarks of a single worker measure. Thread rule: one thread.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/json.h"
#include "distca/batch/data_blend.h"
#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/train/optimizer.h"
#include "distca/train/plan_ahead.h"
#include "distca/train/step.h"

namespace distca::bench {

/// The times of a step, in seconds, and what it computed. With one thread, seconds are processor
/// time of the process, which the turns of other programs do not lengthen; with several, the time
/// that passes, as `elapsed` always is.
struct TimedStep {
  double elapsed = 0, step = 0;
  std::map<std::string, double> parts;  // the parts of `step`, by name
  double loss = 0, gradient_norm = 0;   // a mean over targets; before clipping

  /// All clocks by name, and "attention".
  Json seconds() const;
};

/// Names of parts, forward and backward together but for attention: "embed", "pre_attention" and so
/// on of OpKind, "attention forward", "attention backward", and "optimizer", which is zeroing,
/// summing and clipping of gradients, and the update.
inline constexpr const char* kStepParts[] = {
    "embed",          "pre_attention", "attention forward", "attention backward",
    "post_attention", "loss",          "optimizer"};

class OneWorker {
 public:
  /// Draws the weights, and sets PyTorch's number of threads to train.threads_per_rank. Borrows
  /// both.
  OneWorker(const Config& config, Communicator& comm);

  /// Plans the next batch of the training data.
  PlannedBatch next_batch();
  /// A step of this worker with an attention kernel of its choice. Returns its index.
  size_t add(KernelChoice kernel);
  const Step& step(size_t index) const { return *steps_[index]; }
  /// Plays it, update included, at the configuration's highest learning rate.
  TimedStep run(size_t index, const PlannedBatch& batch);
  const Llama& model() const { return model_; }

 private:
  const Config& config_;
  Communicator& comm_;
  DataBlend data_;
  BatchStream stream_;
  Llama model_;
  std::shared_ptr<const GradientExchange> gradients_;
  Optimizer optimizer_;
  std::vector<std::unique_ptr<Step>> steps_;
};

/// Settings that the headers of these benchmarks have in common.
Json one_worker_settings(const Config& config, int rounds);

}  // namespace distca::bench
