#pragma once
// Plays training steps of several ways (bench/step_plans.h) on the same batches. Thread rule: one
// thread a rank; all ranks call everything here in the same order.

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/step_plans.h"
#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/model/llama.h"
#include "distca/plan/plan.h"
#include "distca/train/optimizer.h"
#include "distca/train/step.h"

namespace distca::bench {

/// Tokens of `segments`, made from (document, position) alone.
LocalTokens made_up_tokens(const NanoBatch& nano_batch, const std::vector<Segment>& segments,
                           int64_t vocab_size);

/// One rank's model, optimizer and arms.
class StepPlayer {
 public:
  /// All ranks are workers and draw the same weights.
  StepPlayer(const LlamaConfig& model, uint64_t seed, Communicator& comm);

  /// Its index.
  size_t add(const StepArm& arm);
  const Llama& llama() const { return llama_; }

  /// Plans the batch and meets the others, neither of which counts, then plays forward, backward,
  /// the ordered sum of gradients and the update.
  PlayedStep play(size_t arm, const BatchLengths& batch);
  /// Plays likewise and returns the figures of all ranks, which are equal on every rank.
  StepFigures run(size_t arm, const BatchLengths& batch);

 private:
  /// An arm and what plays it.
  struct Playable {
    StepArm arm;
    std::unique_ptr<Step> step;
  };
  StepInput input_of(const StepArm& arm, const std::vector<Plan>& plans) const;

  Communicator& comm_;
  Llama llama_;
  Config::Optimizer options_;
  Optimizer optimizer_;
  std::vector<Playable> arms_;
};

}  // namespace distca::bench
