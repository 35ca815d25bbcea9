#pragma once
// The losses of a step's nano-batches, which stay where they were computed until somebody wants the
// number: a read for each nano-batch would hold the host up in the middle of the step. Include
// <ATen/ATen.h> before this header. Thread rule: one thread.

#include <vector>

#include "distca/report/position_losses.h"
#include "distca/train/loader.h"

namespace distca {

class StepLosses {
 public:
  /// The next nano-batch. Borrows its tokens.
  void add(const LocalTokens& tokens) { nano_batches_.push_back({.tokens = &tokens}); }
  /// Takes the loss of a nano-batch: the sums that Llama::chunk_losses gives and, in an evaluation,
  /// the loss of each token.
  void put(int nano_batch, const at::Tensor& sums, const at::Tensor& of_tokens = {});

  /// The loss of all nano-batches so far, in nats: the sum of each, added up in the order of put().
  /// All that has not been read yet is read together.
  double sum();
  /// [nano-batch] The losses of an evaluation.
  std::vector<PositionLosses> by_position();

 private:
  struct NanoBatch {
    const LocalTokens* tokens;
    at::Tensor sums{}, of_tokens{};  // until they are read
    PositionLosses losses{};
  };
  void read();

  std::vector<NanoBatch> nano_batches_;
  std::vector<int> unread_;  // in the order of put()
  double sum_ = 0;
};

}  // namespace distca
