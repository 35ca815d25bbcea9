#pragma once
// Plays the operations of a step that belong to no nano-batch: the sum of the gradients over the
// workers, bucket by bucket, their norm, and the update of the weights
// (program/gradient_exchange.h).
//
//     step.train(input, num_targets, {.optimizer = &optimizer, .workers = &workers, .lr = 1e-3});
//
// Sums are made in rank order, ((x0 + x1) + x2) + ..., so they have the same bits for every size of
// buckets and every backend. Thread rule: one thread; all workers alike.

#include <functional>
#include <memory>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/program/program.h"
#include "distca/runtime/exchange_buffers.h"
#include "distca/runtime/messages_under_way.h"
#include "distca/train/optimizer.h"

namespace distca {

/// The figures of a step that all workers have, with the same bits, before they update their
/// weights.
struct GradientSum {
  double norm = 0;      // norm of the gradients of all stages, before clipping
  double loss_sum = 0;  // sum over all workers, in nats
};

/// How a step sums its gradients and updates the weights with them.
struct UpdateRequest {
  Optimizer* optimizer = nullptr;  // null on a dedicated server
  /// The ranks of one stage, in ascending order: those that hold these weights and, with tensor
  /// parallelism, the other parts of the same matrices.
  Communicator* workers = nullptr;
  /// In a pipeline, the ranks that hold any weights, in the order of the stages. Without one, it is
  /// not used.
  Communicator* all_stages = nullptr;
  double max_grad_norm = 0;  // gradients with a larger norm are scaled down to it; 0 means never
  double lr = 0;
  /// Returns true if the weights are updated with this sum; the same on all workers. If it is
  /// empty, they are.
  std::function<bool(const GradientSum&)> accepts;
  /// Called before the first operation that sums gradients, which may be under backward, and before
  /// the workers meet for the norm. An empty function is not called.
  std::function<void()> before_sum, before_norm;
};

class WeightUpdate {
 public:
  /// Borrows all of them but the model's shape. Messages go through `comm`, whose ranks are the
  /// program's.
  WeightUpdate(const Program& program, const ExchangeBuffers& buffers, Communicator& comm,
               const LlamaConfig& model, const UpdateRequest& request);
  ~WeightUpdate();

  // The parts of a communication, with the names of OpPlayer (executor.h).
  void issue(const Op& op);
  void wait(const Op& op) { under_way_.wait(op); }
  void wait_sent(const Op& op) { under_way_.wait_sent(op); }
  /// Does an operation of the compute stream. `loss_sum` is this rank's, in nats; kGradNorm alone
  /// reads it.
  void play(const Op& op, double loss_sum);

  /// Valid once kGradNorm has been played.
  const GradientSum& sum() const { return sum_; }

 private:
  void begin_sum();
  void add(const Op& op);
  void norm(double loss_sum);
  void put_square_sums(const at::Tensor& slice, int64_t first_block);
  int64_t first_block_of(const GradientBucket& bucket) const;
  void sum_over_workers(double loss_sum);
  void sum_over_stages(double& squares, double& loss) const;

  const Program& program_;
  const ExchangeBuffers& buffers_;
  const UpdateRequest& request_;
  const int rank_;
  MessagesUnderWay under_way_;
  /// Sums of squares, of those that this rank has added up; then the loss. The blocks of the flat
  /// gradients of each index in tensor parallelism, one after another.
  std::vector<double> squares_;
  std::vector<int64_t> first_blocks_;           // [index]
  std::unique_ptr<at::Tensor> device_squares_;  // squares_ on a device until the norm is wanted
  GradientSum sum_;
  bool updates_ = false;
  bool sums_ = false;  // has begun to
};

}  // namespace distca
