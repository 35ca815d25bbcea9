#pragma once
// Runs one training or evaluation step on one rank. A worker plays its program with the phases of a
// model and with disaggregated core attention, a dedicated server with attention alone. In a
// pipeline, a worker plays the phases of its stage of the model.
//
//     Step step(config.model, &model, comm, step_options(config));
//     const StepResult result = step.train(input, num_targets, {.optimizer = &optimizer, ...});
//
// Autograd lives inside a phase; the backward of a phase is an operation of the program (DESIGN,
// "One layer of one nano-batch"). Thread rule: one thread; all ranks run the same steps in the same
// order.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/model/llama.h"
#include "distca/plan/attention_exchange.h"
#include "distca/program/overlap.h"
#include "distca/program/program.h"
#include "distca/runtime/core_attention.h"
#include "distca/runtime/exchange_buffers.h"
#include "distca/runtime/executor.h"
#include "distca/train/loader.h"
#include "distca/train/position_losses.h"
#include "distca/train/weight_update.h"

namespace distca {

struct Config;

/// The work of a rank in a step.
struct StepInput {
  Program program;
  std::vector<LocalTokens> tokens;  // [nano-batch] empty on a dedicated server
};

/// The results of a step on this rank.
struct StepResult {
  double loss_sum = 0;  // nats, over this rank's targets only; 0 on all stages but the last
  ExchangeBytes bytes;  // sent, received and copied
  OpTimes times;        // by operation and pass
  GradientSum sum;      // norm and loss of all workers; not set on a dedicated server
  /// [nano-batch] In an evaluation, the losses that loss_sum adds up. None on a dedicated server.
  std::vector<PositionLosses> losses;
};

/// How steps are run. The fields have the meaning of the configuration's keys.
struct StepOptions {
  Overlap overlap = Overlap::kPingPong;  // train.overlap: none, within or ping-pong
  /// dQ, dK and dV travel in the type in which they are summed, instead of the model's compute type
  /// (exchange.grad_dtype = accumulator). It costs more bytes and rounds less.
  bool wide_gradients = false;
  KernelChoice kernel = KernelChoice::kAuto;  // attention.kernel
  int threads = 1;                            // threads of our own attention kernel
  Recompute recompute = Recompute::kNone;     // train.recompute
  int64_t chunk_rows = 2048;                  // rows that train.recompute=full computes at a time
  int64_t loss_chunk_tokens = 0;              // train.loss_chunk_tokens
  bool distributed_optimizer = false;         // parallel.use_distributed_optimizer
  bool overlap_grad_reduce = true;            // parallel.overlap_grad_reduce
  double bucket_mb = 0;                       // parallel.bucket_mb

  /// Rows whose logits exist at the same time: loss_chunk_tokens or, if that is 0, so many that
  /// their logits take 128 MiB in fp32, but at least 512, since products of few rows with the head
  /// would wait for memory.
  int64_t loss_rows(const LlamaConfig& model) const;
};

/// The options that the configuration gives.
StepOptions step_options(const Config& config);

/// Returns where the masters of a model are kept that is trained with these options.
Masters masters_of(const StepOptions& options);

/// The exchange of gradients and weights of one of the workers: lists of four messages for each
/// bucket and other worker. Where the options give more than `most_buckets`, which is 2 or more,
/// the buckets are larger.
std::shared_ptr<const GradientExchange> gradient_exchange(const LlamaConfig& model,
                                                          const StepOptions& options, int worker,
                                                          int num_workers,
                                                          int64_t most_buckets = kMostBuckets);
/// The exchange of a rank of a pipeline, whose messages go to the other replicas of its stage,
/// where rank = stage * replicas + replica. Gradients and weights are those of the stage. Those of
/// a tied embedding go to the replicas of the other stage that holds it, too.
std::shared_ptr<const GradientExchange> gradient_exchange(const LlamaConfig& model,
                                                          const StepOptions& options,
                                                          const Stage& stage, int rank,
                                                          int replicas,
                                                          int64_t most_buckets = kMostBuckets);
/// [bucket] The elements of the stage's flat gradients that the rank adds up.
std::vector<Range> gradient_slices(const LlamaConfig& model, const StepOptions& options,
                                   const Stage& stage, int rank, int replicas);

/// The messages and tasks of one rank under a plan, for a model of this shape. `window` is the
/// index in model.windows() for which the plan was made.
std::shared_ptr<const AttentionExchange> attention_exchange(const PlanIndex& index, int rank,
                                                            const LlamaConfig& model,
                                                            const StepOptions& options,
                                                            size_t window = 0);
/// The program of one rank. `holds_weights` is false on a dedicated server. Without `gradients`,
/// gradients are not summed. `nano_batches` has a part for each nano-batch and each of
/// model.windows() (ProgramRequest).
Program step_program(const LlamaConfig& model, const StepOptions& options, bool holds_weights,
                     ProgramRequest::Kind kind, std::vector<NanoPart> nano_batches,
                     std::shared_ptr<const GradientExchange> gradients = nullptr);

/// The program of one rank of a pipeline; what is handed over is part of `part`
/// (hand_over_bytes, train/hand_overs.h).
Program step_program(const LlamaConfig& model, const StepOptions& options, StagePart part,
                     ProgramRequest::Kind kind,
                     std::shared_ptr<const GradientExchange> gradients = nullptr);

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
  ~Step();

  /// Runs forward and backward of all nano-batches. The gradients of sum(loss) / num_targets are
  /// added to the parameters' .grad, summed over the workers and used as `update` says. Without an
  /// optimizer in it, they are left as they are; the program must have no buckets then (CHECK).
  StepResult train(const StepInput& input, int64_t num_targets, const UpdateRequest& update);
  /// Computes only the loss, with a program of Kind::kEvaluate.
  StepResult evaluate(const StepInput& input);
  const AttentionKernel& kernel() const { return kernel_; }
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
