#pragma once
// AdamW with warm-up and cosine, clipping by global norm, and the gradients' flat buffer. Thread
// rule: one thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/train/config.h"

namespace at {
class Tensor;
}

namespace distca {

/// Linear warm-up to lr, then a cosine to lr * min_lr_ratio at the last of `total_steps`; `step`
/// counts from 0.
double learning_rate(const Config::Optimizer& options, int64_t step, int64_t total_steps);

class Optimizer {
 public:
  /// Points every parameter's .grad into one flat buffer, fp32 (fp64 for fp64 parameters).
  Optimizer(const std::vector<at::Tensor>& parameters, const Config::Optimizer& options);
  ~Optimizer();

  void zero_gradients();
  /// Adds the gradients of all ranks in rank order, then clips by the global norm. Returns the norm
  /// before clipping: the same bits on every rank, summed over fixed blocks in double.
  double sum_and_clip(Communicator& comm);
  void update(double lr);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
