#pragma once
// Runs one training or evaluation step on one rank. A worker plays its program with the phases of a
// model and with disaggregated core attention, a dedicated server with attention alone. In a
// pipeline, a worker plays the phases of its stage of the model.
//
//     Step step(config.model, &model, comm, step_options(config));
//     const StepResult result = step.train(input, num_targets, {.optimizer = &optimizer, ...});
//
// With tensor parallelism, a worker is one of the ranks that divide the matrices of its layers
// (docs/program.md, "Tensor parallelism").
//
// The backward of a phase is an operation of the program (DESIGN, "One layer of one nano-batch").
// Thread rule: one thread; all ranks run the same steps in the same
// order.

#include <functional>
#include <utility>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/forecast/step_program.h"
#include "distca/model/llama.h"
#include "distca/program/program.h"
#include "distca/report/position_losses.h"
#include "distca/runtime/exchange_buffers.h"
#include "distca/runtime/executor.h"
#include "distca/runtime/step_attention.h"
#include "distca/train/loader.h"
#include "distca/train/weight_update.h"

namespace distca {

/// The work of a rank in a step.
struct StepInput {
  Program program;
  std::vector<LocalTokens> tokens;  // [nano-batch] empty on a dedicated server
};

/// The results of a step on this rank.
struct StepResult {
  double loss_sum = 0;  // nats, over this rank's targets only; 0 on all stages but the last
  ExchangeBytes bytes;  // sent, received and copied
  /// The part of bytes.sent that goes to ranks that divide the same layers.
  int64_t bytes_tensor = 0;
  OpTimes times;    // by operation and pass
  GradientSum sum;  // norm and loss of all workers; not set on a dedicated server
  /// [nano-batch] In an evaluation, the losses that loss_sum adds up. None on a dedicated server.
  std::vector<PositionLosses> losses;
};

/// Called by the playing thread before an operation (`is_over` is false) and behind it; behind a
/// communication once its messages have been issued.
using OpWatch = std::function<void(const Op& op, bool is_over)>;

/// Runs the steps of one rank; keeps their buffers from step to step.
class Step {
 public:
  /// `model` is null on a dedicated server, which needs only the shape of the model; in a pipeline
  /// it has the weights of the stage.
  Step(const LlamaConfig& config, const Llama* model, Communicator& comm,
       const StepOptions& options);

  /// Runs forward and backward of all nano-batches. The gradients of sum(loss) / num_targets are
  /// added to the parameters' .grad, summed over the workers and used as `update` says. Without an
  /// optimizer in it, they are left as they are; the program must have no buckets then (CHECK).
  StepResult train(const StepInput& input, int64_t num_targets, const UpdateRequest& update);
  /// Computes only the loss, with a program of Kind::kEvaluate.
  StepResult evaluate(const StepInput& input);
  AttentionKernel& kernel() { return kernel_; }
  const ExchangeBuffers& buffers() const { return buffers_; }
  /// Records the events of the following steps in `recorder`; null ends it.
  void set_recorder(TraceRecorder* recorder) { recorder_ = recorder; }
  /// Calls `watch` before and behind every operation of the following steps; null ends it.
  void set_watch(OpWatch watch) { watch_ = std::move(watch); }

 private:
  StepResult run(const StepInput& input, double loss_scale, const UpdateRequest& update);
  StepResult play_all(const StepInput& input, double loss_scale, const UpdateRequest& update);

  const LlamaConfig config_;
  const Llama* model_;
  Communicator& comm_;
  const StepOptions options_;
  AttentionKernel kernel_;
  ExchangeBuffers buffers_;
  TraceRecorder* recorder_ = nullptr;
  OpWatch watch_;
};

}  // namespace distca
