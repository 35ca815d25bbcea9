#pragma once
// AdamW, its learning rate over time, and the flat buffer that holds the gradients. A rank
// keeps AdamW's moments of what it updates. That is all weights or, with ZeRO-1
// (parallel.use_distributed_optimizer), the rank's slices of the buckets of gradients
// (program/gradient_exchange.h), of which it then keeps the fp32 main params, too. The
// operations of a step's program call it (train/weight_update.h). Thread rule: one thread.
//
//     Optimizer optimizer(model, config.optimizer, gradients);
//     optimizer.zero_gradients();
//     // backward adds to every parameter's .grad; buckets are summed
//     optimizer.begin_update(learning_rate(config, step), scale);
//     for (size_t bucket = 0; bucket < num_buckets; ++bucket) optimizer.update(bucket);

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "distca/checkpoint/index.h"
#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/model/weight_table.h"
#include "distca/program/gradient_exchange.h"

namespace at {
class Tensor;
}

namespace distca {

class Llama;

/// AdamW's state and the gradients of some parameters.
class Optimizer {
 public:
  /// The weights that an optimizer updates.
  struct Weights {
    std::vector<Weight> table;
    /// [weight] In the gradients' type, fp32 or fp64, or else copies that are rounded from main
    /// params.
    std::vector<at::Tensor> parameters;
    at::Tensor storage;  // [bytes] that holds all parameters; needed to gather them
    /// The initial value of a weight in fp32, for main params that are not the parameters.
    std::function<at::Tensor(const Weight&)> initial;
  };

  /// Lets every parameter's .grad point into one flat buffer, in fp32 (fp64 for fp64 parameters).
  Optimizer(Weights weights, const Config::Optimizer& options,
            std::shared_ptr<const GradientExchange> gradients);
  /// Makes the optimizer of a model's weights. `seed` is the one that the model was drawn with.
  Optimizer(const Llama& model, uint64_t seed, const Config::Optimizer& options,
            std::shared_ptr<const GradientExchange> gradients);
  ~Optimizer();

  const std::shared_ptr<const GradientExchange>& exchange() const;
  void zero_gradients();
  /// [elements] The gradients of all weights, in their flat layout.
  const at::Tensor& gradients() const;
  /// [bytes] All parameters, in their layout.
  const at::Tensor& storage() const;

  /// Begins an AdamW step: gradients count times `scale`.
  void begin_update(double lr, double scale);
  /// Updates what this rank updates of a bucket, once its gradients are summed.
  void update(size_t bucket);

  /// How often begin_update() was called, over all runs that this state comes from.
  int64_t updates() const;
  /// [elements] Some elements of a weight's state, which this rank must hold (CHECK), in row-major
  /// order. The tensor shares memory with the state. Moments are zero before the first update.
  at::Tensor state(StatePart part, size_t weight, const Range& elements) const;
  /// The elements of a weight that this rank updates, in row-major order.
  std::vector<Range> updated_elements(size_t weight) const;
  /// Takes the weight's state, or what this rank keeps of it, from `held`, which has the shape of
  /// what this rank holds of the weight (Weight::box).
  void load(StatePart part, size_t weight, const at::Tensor& held);
  /// Where each rank has loaded only what it updates of the weights, brings it the rest. The ranks
  /// are those of gather_main_params().
  void gather_weights(Communicator& workers);
  /// To be called after load(), with the number that belongs to the state.
  void set_updates(int64_t updates);
  /// Bytes of the moments and of main params that are not the parameters.
  int64_t state_bytes() const;

  /// Brings all main params that this rank holds to the first replica of them. There it returns
  /// them in the order of the weights; they lie where the gradients lay. Elsewhere it returns
  /// nothing. With ZeRO-1, the last stage's copy of a tied embedding is not whole: rank 0 has it.
  /// Of what ranks of a server share, the first of them has it. `workers` are all ranks that hold
  /// weights, and all of them call it.
  std::vector<at::Tensor> gather_main_params(Communicator& workers);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
