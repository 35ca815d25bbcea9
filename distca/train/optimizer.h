#pragma once
// AdamW with a linear warm-up and a cosine, clipping by the global norm of the gradients, and the
// flat buffer that holds the gradients. Thread rule: one thread.
//
//     Optimizer optimizer(model.weights(), model.parameters(), config.optimizer);
//     optimizer.zero_gradients();
//     // backward adds to every parameter's .grad
//     const GradientSum sum = optimizer.sum_and_clip(workers, loss_sum);
//     optimizer.update(learning_rate(config.optimizer, step, config.train.steps));

#include <cstdint>
#include <memory>
#include <vector>

#include "distca/checkpoint/index.h"
#include "distca/comm/communicator.h"
#include "distca/model/weight_table.h"
#include "distca/train/config.h"

namespace at {
class Tensor;
}

namespace distca {

/// The learning rate of `step`, which counts from 0. It rises linearly to lr during the warm-up,
/// then falls along a cosine to lr * min_lr_ratio at the last of `total_steps`.
double learning_rate(const Config::Optimizer& options, int64_t step, int64_t total_steps);

/// What ranks know together before they update. All have the same bits.
struct GradientSum {
  double norm = 0;      // of all gradients, before clipping
  double loss_sum = 0;  // of all ranks, in nats, rounded to the gradients' type
};

/// AdamW's state and the gradients of some parameters.
class Optimizer {
 public:
  /// Lets every parameter's .grad point into one flat buffer, in fp32 (fp64 for fp64 parameters).
  Optimizer(const std::vector<Weight>& weights, const std::vector<at::Tensor>& parameters,
            const Config::Optimizer& options);
  ~Optimizer();

  void zero_gradients();
  /// Sums the gradients of all ranks of `comm` in rank order, then clips them by their global norm.
  /// The norm is summed over fixed chunks in double. `loss_sum` is this rank's own and travels with
  /// the gradients.
  GradientSum sum_and_clip(Communicator& comm, double loss_sum);
  /// Changes the parameters by one AdamW step.
  void update(double lr);

  /// How often update() was called, over all runs that this state comes from.
  int64_t updates() const;
  /// A part of the state, in the order of the parameters: the parameters themselves, or AdamW's
  /// moments, which are zero before the first update. The tensors share memory with the state.
  const std::vector<at::Tensor>& state(StatePart part) const;
  /// To be called after state() was filled with what a checkpoint holds.
  void restore(int64_t updates);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
