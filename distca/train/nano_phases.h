#pragma once
// The linear phases of one nano-batch on one worker: a Llama's operations around core attention,
// and what of them stands in memory between forward and backward (train.recompute).
//
//     NanoPhases nano(model, attention, /*nano_batch=*/0, tokens, options);
//     nano.play(embed);
//     nano.play(pre_attention);   // gives Q, K, V to `attention`, which a program plays
//     nano.play(post_attention);  // takes O
//     const at::Tensor sums = nano.loss();  // on the device; whoever wants the number reads it
//     nano.play(backward_post_attention);
//
// Backward of a layer's phases may leave the gradients by its matrices for later: then a
// kWeightGradient adds them.
//
// On a stage of a pipeline, begin() and take_output() stand in place of kEmbed and the loss, and in
// backward begin_backward() and take_gradient() in place of the loss's and the embedding's.
//
// With Recompute::kFull, each phase goes through the tokens by chunks of rows, so that the rows
// inside an MLP never exist for all of them. Include <ATen/ATen.h> before this header. Thread rule:
// one thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "distca/model/llama.h"
#include "distca/runtime/step_attention.h"
#include "distca/train/loader.h"
#include "distca/train/nano_player.h"

namespace distca {

class NanoPhases final : public NanoPlayer {
 public:
  /// Borrows the first two. Where grad mode is off, nothing is kept for backward. Layers have the
  /// model's numbers.
  NanoPhases(const Llama& model, StepAttention& attention, int nano_batch,
             const LocalTokens& tokens, const NanoOptions& options);

  void play(const Op& op) override;
  at::Tensor loss() override;
  at::Tensor evaluated_loss(at::Tensor* of_tokens) override;
  bool is_done() const override;
  void begin(const at::Tensor& x) override;
  at::Tensor take_output() override;
  void begin_backward(const at::Tensor& d_output) override;
  at::Tensor take_gradient() override;
  // No rows are gathered or summed for whole phases.
  void pack(const Op& op) override;
  void land(const Op& op) override;

 private:
  void play_forward(const Op& op);
  void play_backward(const Op& op);
  void pre_attention(int layer);
  void post_attention(int layer);
  // With `leaves_weights`, gradients by the layer's matrices are left to weight_gradient().
  void post_attention_backward(int layer, bool leaves_weights);
  void pre_attention_backward(int layer, bool leaves_weights);
  void weight_gradient(int layer);
  void embed_backward();

  /// A layer between its forward and the end of its backward.
  struct Layer {
    at::Tensor x;    // input of pre_attention and, as the residual, of post_attention
    at::Tensor d_x;  // gradient by x, which both phases add to, in backward
    /// What the phases left; under kFull pre-attention alone, in backward, [chunk].
    std::vector<std::shared_ptr<Llama::PreAttention>> pre;
    std::shared_ptr<Llama::PostAttention> post;
    std::shared_ptr<Llama::LeftGradients> left;  // until weight_gradient()
  };

  Keep keep() const;
  void end_backward();
  struct Qkv {
    at::Tensor q, k, v;
  };
  std::shared_ptr<const Llama::Rope> rope_of(int64_t begin, int64_t count) const;
  Qkv pre_attention_of_all(Layer& l, int layer, bool keeps) const;

  const Llama& model_;
  StepAttention& attention_;
  const int nano_batch_;
  const NanoOptions options_;
  const RowChunks chunks_;
  at::Tensor ids_, targets_, positions_;                   // [T] one element for each token
  std::shared_ptr<const Llama::Occurrences> occurrences_;  // places of ids_, if they get gradients
  std::shared_ptr<const Llama::Rope> rope_;
  at::Tensor x_;         // running activation
  at::Tensor gradient_;  // running gradient of the activation
  std::vector<Layer> layers_;
  bool is_over_ = false;  // backward is
};

}  // namespace distca
