#pragma once
// One rank of a pipeline without replicas, which plays whole training steps of its stage in several
// ways. Weights are never updated, so that all ways compute the same step. Thread rule: one thread
// a rank, all ranks alike.

#include <memory>

#include "bench/pipeline_setup.h"
#include "distca/comm/communicator.h"
#include "distca/model/llama.h"
#include "distca/train/optimizer.h"
#include "distca/train/step.h"

namespace distca::bench {

/// One rank's step.
struct StageStep {
  PlayedStep played;
  double computed_s = 0;            // time of all operations of the compute stream
  double attention_s = 0;           // time of core attention alone
  double exchange_processor_s = 0;  // processor time of the process outside the compute stream
  OpTimes times;
};

/// Model and gradients of this rank's stage. There are as many stages as ranks.
class StageModel {
 public:
  StageModel(const LlamaConfig& config, Communicator& comm);

  const std::shared_ptr<const GradientExchange>& gradients() const { return gradients_; }
  /// Plays a step between a barrier and the end of its sums.
  StageStep play(Step& step, const StepInput& input, int64_t num_targets);
  std::unique_ptr<Step> make_step() const {
    return std::make_unique<Step>(config_, &llama_, comm_, StepOptions{});
  }

 private:
  const LlamaConfig config_;
  Communicator& comm_;
  std::unique_ptr<Communicator> replicas_;  // this rank alone
  Llama llama_;
  std::shared_ptr<const GradientExchange> gradients_;
  Optimizer optimizer_;
};

/// A rank's part of a pipeline's step.
StepInput stage_input(const PipelineParts& parts, const LlamaConfig& model, int rank,
                      std::shared_ptr<const GradientExchange> gradients);

}  // namespace distca::bench
