#pragma once
// The linear phases of one nano-batch on a worker that has whole matrices: a Llama's operations
// around core attention. Include <ATen/ATen.h> before this header. Thread rule: one thread.

#include <memory>
#include <vector>

#include "distca/train/nano_player.h"

namespace distca {

class NanoPhases final : public NanoPlayer {
 public:
  NanoPhases(const Llama& model, StepAttention& attention, int nano_batch,
             const LocalTokens& tokens, const NanoOptions& options);

  at::Tensor loss(at::Tensor* of_tokens) override;
  // No rows are gathered or summed for whole phases.
  void pack(const Op& op) override;
  void land(const Op& op) override;

 private:
  void play_forward(const Op& op) override;
  void play_backward(const Op& op) override;
  void qkv(int layer, const at::Tensor& rows, const Llama::Rope& rope, Qkv& made,
           Kept* kept) const override;
  void pre_attention(int layer);
  void post_attention(int layer);
  // With `leaves_weights`, gradients by the layer's matrices are left to kWeightGradient.
  void post_attention_backward(int layer, bool leaves_weights);
  void pre_attention_backward(int layer, bool leaves_weights);

  /// A layer between its forward and the end of its backward.
  struct Layer {
    at::Tensor x;    // input of pre_attention and, as the residual, of post_attention
    at::Tensor d_x;  // gradient by x, which both phases add to, in backward
    /// What the phases left; under kFull pre-attention alone, in backward, [chunk].
    std::vector<Kept> pre;
    std::shared_ptr<Llama::PostAttention> post;
  };

  std::shared_ptr<const Llama::Occurrences> occurrences_;  // places of ids_, if they get gradients
  std::vector<Layer> layers_;
};

}  // namespace distca
