#pragma once
// The phases of one nano-batch on one of the ranks that divide the matrices of its layers. Between
// two operations rows are gathered or parts of rows summed (tensor_messages.h), of which nothing is
// kept: each rank keeps its own rows, and computes norms of them again where backward gathers them.
//
// Letters: R tokens of the server, r of them this rank's rows, C hidden_size. Include <ATen/ATen.h>
// before this header. Thread rule: one thread.

#include <memory>
#include <vector>

#include "distca/model/tensor_phases.h"
#include "distca/train/nano_player.h"
#include "distca/train/tensor_messages.h"

namespace distca {

class TensorNanoPhases final : public NanoPlayer {
 public:
  /// Borrows the first three.
  TensorNanoPhases(const Llama& model, StepAttention& attention, TensorMessages& messages,
                   int nano_batch, const LocalTokens& tokens, const NanoOptions& options);

  at::Tensor loss(at::Tensor* of_tokens) override;
  void pack(const Op& op) override;
  void land(const Op& op) override;

 private:
  /// A layer between its forward and the end of its backward. Its rows are this rank's [r, C].
  struct Layer {
    at::Tensor x, m;                            // the residual stream before both norms
    at::Tensor attention_factors, mlp_factors;  // [r, 1] of these norms
    at::Tensor d_m;                             // in backward
    /// [chunk] Empty where backward computes them again.
    std::vector<Kept> pre;
    std::vector<std::shared_ptr<Llama::PostAttention>> post;
  };

  void play_forward(const Op& op) override;
  void play_backward(const Op& op) override;
  void qkv(int layer, const at::Tensor& rows, const Llama::Rope& rope, Qkv& made,
           Kept* kept) const override;
  void pre_attention(const Op& op);
  void post_attention(const Op& op);
  void post_attention_backward(const Op& op);
  void out_projection_backward(const Op& op);
  void pre_attention_backward(const Op& op);

  const TensorPhases phases_;
  TensorMessages& messages_;
  std::shared_ptr<const TensorPhases::OwnIds> own_ids_;  // if the embedding gets gradients
  at::Tensor normed_;    // norm of the running activation [r, C], until it is gathered
  at::Tensor d_normed_;  // gradient by that, summed
  std::vector<Layer> layers_;
};

}  // namespace distca
