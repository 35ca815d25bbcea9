#pragma once
// The phases of one nano-batch on one of the ranks that divide the matrices of its layers, and what
// of them stands in memory between forward and backward (train.recompute). Between two operations
// rows are gathered or parts of rows summed (tensor_messages.h), of which nothing is kept: each
// rank keeps its own rows, and computes norms of them again where backward gathers these.
//
// Letters: R tokens of the server, r of them this rank's rows, C hidden_size. Include <ATen/ATen.h>
// before this header. Thread rule: one thread.

#include <memory>
#include <vector>

#include "distca/model/tensor_phases.h"
#include "distca/runtime/step_attention.h"
#include "distca/train/loader.h"
#include "distca/train/nano_player.h"
#include "distca/train/tensor_messages.h"

namespace distca {

class TensorNanoPhases final : public NanoPlayer {
 public:
  /// Borrows the first three. `tokens` are those of the whole server. Where grad mode is off,
  /// nothing is kept for backward.
  TensorNanoPhases(const Llama& model, StepAttention& attention, TensorMessages& messages,
                   int nano_batch, const LocalTokens& tokens, const NanoOptions& options);

  void play(const Op& op) override;
  at::Tensor loss() override;
  at::Tensor evaluated_loss(at::Tensor* of_tokens) override;
  bool is_done() const override;
  void begin(const at::Tensor& x) override;
  at::Tensor take_output() override;
  void begin_backward(const at::Tensor& d_output) override;
  at::Tensor take_gradient() override;
  void pack(const Op& op) override;
  void land(const Op& op) override;

 private:
  /// A layer between its forward and the end of its backward. Its rows are this rank's [r, C].
  struct Layer {
    at::Tensor x, m;                            // the residual stream before both norms
    at::Tensor attention_factors, mlp_factors;  // [r, 1] of these norms
    at::Tensor d_m;                             // in backward
    /// [chunk] Empty where backward computes them again.
    std::vector<std::shared_ptr<Llama::PreAttention>> pre;
    std::vector<std::shared_ptr<Llama::PostAttention>> post;
    std::shared_ptr<Llama::LeftGradients> left;  // until weight_gradient
  };
  struct Qkv {
    at::Tensor q, k, v;
  };

  void play_forward(const Op& op);
  void play_backward(const Op& op);
  void pre_attention(const Op& op);
  void post_attention(const Op& op);
  void post_attention_backward(const Op& op);
  void out_projection_backward(const Op& op);
  void pre_attention_backward(const Op& op);
  Qkv projections(int layer, const at::Tensor& h,
                  std::vector<std::shared_ptr<Llama::PreAttention>>* kept) const;
  std::shared_ptr<const Llama::Rope> rope_of(int64_t begin, int64_t count) const;
  bool keeps() const;
  Keep keep() const;
  bool reports() const { return model_.stage().tensor.index == 0; }
  void end_backward();

  const Llama& model_;
  const TensorPhases phases_;
  StepAttention& attention_;
  TensorMessages& messages_;
  const int nano_batch_;
  const NanoOptions options_;
  const RowChunks chunks_;                               // all rows of the server, some at a time
  at::Tensor ids_, targets_, positions_;                 // [R]
  std::shared_ptr<const TensorPhases::OwnIds> own_ids_;  // if the embedding gets gradients
  std::shared_ptr<const Llama::Rope> rope_;
  at::Tensor x_;         // running activation [r, C]
  at::Tensor normed_;    // its norm, until it is gathered
  at::Tensor d_normed_;  // gradient by that, summed
  at::Tensor gradient_;  // running gradient of the activation
  std::vector<Layer> layers_;
  bool is_over_ = false;  // backward is
};

}  // namespace distca
