#pragma once
// One training or evaluation step of one rank: plays a program with a model's phases and
// disaggregated core attention, or, on a dedicated server, with attention alone. Autograd lives
// inside a phase; its backward is an operation of the program (DESIGN, "One layer of one
// nano-batch"). Thread rule: one thread; all ranks run the same steps in the same order.

#include <functional>
#include <memory>
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

namespace distca {

struct Config;

/// What a rank does in a step.
struct StepInput {
  Program program;
  std::vector<LocalTokens> tokens;  // [nano-batch] none on a dedicated server
};

struct StepResult {
  double loss_sum = 0;  // nats, over this rank's targets only
  ExchangeBytes bytes;
  OpTimes times;
};

struct StepOptions {
  Overlap overlap = Overlap::kPingPong;
  bool wide_gradients = false;  // dQ, dK, dV travel in the accumulator's type, not the compute type
  KernelChoice kernel = KernelChoice::kAuto;
  int threads = 1;  // of our own attention kernel
};

/// As the configuration says.
StepOptions step_options(const Config& config);

/// What one rank exchanges and computes under a plan with the model's shape.
std::shared_ptr<const AttentionExchange> attention_exchange(const PlanIndex& index, int rank,
                                                            const LlamaConfig& model,
                                                            const StepOptions& options);
/// The program of one rank.
Program step_program(const LlamaConfig& model, const StepOptions& options, bool holds_weights,
                     ProgramRequest::Kind kind, std::vector<NanoPart> nano_batches);

/// The program of one rank for the plans of a batch, as the configuration says.
Program rank_program(const Config& config, const std::vector<PlanIndex>& plans, bool redispatched,
                     ProgramRequest::Kind kind, int rank, int num_workers);

class Step {
 public:
  /// `model`: null on a dedicated server, which then only needs its shape.
  Step(const LlamaConfig& config, const Llama* model, Communicator& comm,
       const StepOptions& options);
  ~Step();

  /// Forward and backward of all nano-batches; gradients of sum(loss) / num_targets are added to
  /// the parameters' .grad. `sum_gradients` and `update` are the program's last two operations.
  StepResult train(const StepInput& input, int64_t num_targets,
                   const std::function<void()>& sum_gradients, const std::function<void()>& update);
  /// Forward and loss only: a program of Kind::kEvaluate.
  StepResult evaluate(const StepInput& input);
  const AttentionKernel& kernel() const { return kernel_; }
  const ExchangeBuffers& buffers() const { return buffers_; }
  /// Records the events of the steps that follow; null: none.
  void set_recorder(TraceRecorder* recorder) { recorder_ = recorder; }

 private:
  StepResult run(const StepInput& input, double loss_scale,
                 const std::function<void()>& sum_gradients, const std::function<void()>& update);

  const Llama* model_;
  Communicator& comm_;
  AttentionKernel kernel_;
  ExchangeBuffers buffers_;
  TraceRecorder* recorder_ = nullptr;
};

}  // namespace distca
