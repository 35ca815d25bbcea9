#pragma once
// One training or evaluation step of one rank: plays a program with a model's phases and
// disaggregated core attention. Autograd lives inside a phase; its backward is an operation of the
// program (DESIGN, "One layer of one nano-batch"). Thread rule: one thread; all ranks run the same
// steps in the same order.

#include <functional>
#include <memory>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/model/llama.h"
#include "distca/plan/exchange.h"
#include "distca/program/program.h"
#include "distca/runtime/core_attention.h"
#include "distca/runtime/executor.h"
#include "distca/train/loader.h"

namespace distca {

/// One nano-batch as this rank sees it.
struct NanoInput {
  RankExchange exchange;
  LocalTokens tokens;
};

struct StepResult {
  double loss_sum = 0;  // nats, over this rank's targets only
  ExchangeBytes bytes;
  OpTimes times;
};

struct StepOptions {
  CoreAttentionOptions::GradientTravel gradient_travel =
      CoreAttentionOptions::GradientTravel::kCompute;
  KernelChoice kernel = KernelChoice::kAuto;
  int threads = 1;  // of our own attention kernel
};

class Step {
 public:
  Step(const Llama& model, Communicator& comm, const StepOptions& options);
  ~Step();

  /// Forward and backward of all nano-batches; gradients of sum(loss) / num_targets are added to
  /// the parameters' .grad. `sum_gradients` and `update` are the program's last two operations.
  StepResult train(std::vector<NanoInput> inputs, int64_t num_targets,
                   const std::function<void()>& sum_gradients, const std::function<void()>& update);
  /// Forward and loss only.
  StepResult evaluate(std::vector<NanoInput> inputs);
  const AttentionKernel& kernel() const { return kernel_; }

 private:
  const Llama& model_;
  Communicator& comm_;
  CoreAttentionOptions::GradientTravel gradient_travel_;
  AttentionKernel kernel_;
};

}  // namespace distca
