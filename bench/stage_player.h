#pragma once
// One rank of a pipeline without replicas, which plays whole training steps of its stage in several
// ways and, for data parallel training, steps of the whole model. Weights are never updated, so
// that all ways compute the same step. Thread rule: one thread a rank, all ranks alike.

#include <memory>
#include <vector>

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
  double copied_s = 0;              // packing, issuing, landing
  double exchange_processor_s = 0;  // processor time of the process outside the compute stream
  OpTimes times;
};

/// Model and gradients of a rank.
class RankModel {
 public:
  /// The stage of this rank, where there are as many stages as ranks.
  static std::unique_ptr<RankModel> of_stage(const LlamaConfig& config, Communicator& comm);
  /// The whole model; gradients are summed over all ranks.
  static std::unique_ptr<RankModel> whole(const LlamaConfig& config, Communicator& comm);

  const std::shared_ptr<const GradientExchange>& gradients() const { return gradients_; }
  /// Plays a step between a barrier and the end of its sums.
  StageStep play(Step& step, const StepInput& input, int64_t num_targets);
  std::unique_ptr<Step> make_step() const {
    return std::make_unique<Step>(config_, &llama_, comm_, StepOptions{});
  }

 private:
  RankModel(const LlamaConfig& config, const Stage& stage, Communicator& comm, bool is_whole);

  const LlamaConfig config_;
  Communicator& comm_;
  std::unique_ptr<Communicator> replicas_;  // that hold the same weights
  bool is_whole_;
  Llama llama_;
  std::shared_ptr<const GradientExchange> gradients_;
  Optimizer optimizer_;
};

/// A rank's part of a pipeline's step.
StepInput stage_input(const PipelineParts& parts, const LlamaConfig& model, int rank,
                      std::shared_ptr<const GradientExchange> gradients);
/// A rank's part of a step in which all ranks hold the whole model, balanced.
StepInput data_parallel_input(const BatchLengths& lengths, const LlamaConfig& model, int rank,
                              int ranks, std::shared_ptr<const GradientExchange> gradients);

}  // namespace distca::bench
