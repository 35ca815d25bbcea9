#pragma once
// AdamW with a linear warm-up and a cosine, clipping by the global norm of the gradients, and the
// flat buffer that holds the gradients. Thread rule: one thread.
//
//     Optimizer optimizer(model.parameters(), config.optimizer);
//     optimizer.zero_gradients();
//     // backward adds to every parameter's .grad
//     const double norm = optimizer.sum_and_clip(workers);
//     optimizer.update(learning_rate(config.optimizer, step, config.train.steps));

#include <cstdint>
#include <memory>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/train/config.h"

namespace at {
class Tensor;
}

namespace distca {

/// The learning rate of `step`, which counts from 0. It rises linearly to lr during the warm-up,
/// then falls along a cosine to lr * min_lr_ratio at the last of `total_steps`.
double learning_rate(const Config::Optimizer& options, int64_t step, int64_t total_steps);

/// AdamW's state and the gradients of some parameters.
class Optimizer {
 public:
  /// Lets every parameter's .grad point into one flat buffer, in fp32 (fp64 for fp64 parameters).
  Optimizer(const std::vector<at::Tensor>& parameters, const Config::Optimizer& options);
  ~Optimizer();

  void zero_gradients();
  /// Sums the gradients of all ranks of `comm` in rank order, then clips them by their global norm.
  /// Returns the norm before clipping. It has the same bits on every rank, because it is summed
  /// over fixed chunks in double.
  double sum_and_clip(Communicator& comm);
  /// Changes the parameters by one AdamW step.
  void update(double lr);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
