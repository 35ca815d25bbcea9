#pragma once
// The linear phases of one nano-batch on one worker: a Llama's operations around core attention,
// and what of them stands in memory between forward and backward (train.recompute).
//
//     NanoPhases nano(model, attention, /*nano_batch=*/0, tokens, options);
//     nano.embed();
//     nano.pre_attention(0);   // gives Q, K, V to `attention`, which a program plays
//     nano.post_attention(0);  // takes O
//     const at::Tensor sums = nano.loss();  // on the device; whoever wants the number reads it
//     nano.post_attention_backward(0);
//     nano.pre_attention_backward(0);
//     nano.embed_backward();
//
// Backward of a layer's phases may leave the gradients by its matrices for later: then
// weight_gradient() adds them.
//
// On a stage of a pipeline, begin() and take_output() stand in place of embed() and loss(), and in
// backward begin_backward() and take_gradient() in place of the loss's and the embedding's.
//
// With Recompute::kFull, each phase goes through the tokens by chunks of rows, so that the rows
// inside an MLP never exist for all of them. Include <ATen/ATen.h> before this header. Thread rule:
// one thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "distca/cost/memory_price.h"
#include "distca/model/llama.h"
#include "distca/runtime/step_attention.h"
#include "distca/train/loader.h"

namespace distca {

class NanoPhases {
 public:
  struct Options {
    Recompute recompute = Recompute::kNone;
    bool keys_travel_again = false;  // servers get Q, K, V again for backward
    int64_t chunk_rows = 0;          // rows that go through a phase at a time under kFull
    int64_t loss_rows = 0;           // rows whose logits exist at the same time
    double loss_scale = 1;           // factor by which the gradients are scaled
  };

  /// Borrows the first two. Where grad mode is off, nothing is kept for backward. Layers have the
  /// model's numbers.
  NanoPhases(const Llama& model, StepAttention& attention, int nano_batch,
             const LocalTokens& tokens, const Options& options);

  void embed();
  void pre_attention(int layer);
  void post_attention(int layer);
  /// Computes the loss and does its backward. Returns the sum of the loss over this worker's
  /// targets in parts, one for each chunk of rows, in nats (Llama::chunk_losses).
  at::Tensor loss();
  /// Returns the same sums where grad mode is off. `of_tokens` becomes the loss of each token.
  at::Tensor evaluated_loss(at::Tensor* of_tokens);
  /// With `leaves_weights`, gradients by the layer's matrices are left to weight_gradient(). Both
  /// phases of a layer must agree.
  void post_attention_backward(int layer, bool leaves_weights = false);
  void pre_attention_backward(int layer, bool leaves_weights = false);
  /// Adds the gradients by matrices that both phases of the layer have left.
  void weight_gradient(int layer);
  void embed_backward();
  /// Returns true once backward is over and nothing of it is left for later.
  bool is_done() const;

  // The activations and gradients that neighbouring stages hand to each other: rows [T, C] in the
  // compute type.
  void begin(const at::Tensor& x);
  at::Tensor take_output();
  void begin_backward(const at::Tensor& d_output);
  at::Tensor take_gradient();  // by what begin() was given

 private:
  /// A layer between its forward and the end of its backward.
  struct Layer {
    at::Tensor x;    // input of pre_attention and, as the residual, of post_attention
    at::Tensor d_x;  // gradient by x, which both phases add to, in backward
    /// What the phases left; under kFull pre-attention alone, in backward, [chunk].
    std::vector<std::shared_ptr<Llama::PreAttention>> pre;
    std::shared_ptr<Llama::PostAttention> post;
    std::shared_ptr<Llama::LeftGradients> left;  // until weight_gradient()
  };

  bool by_chunks() const { return options_.recompute == Recompute::kFull; }
  Keep keep() const;
  int64_t rows_at_once() const;
  void for_chunks(const std::function<void(int64_t begin, int64_t count)>& work) const;
  void put(at::Tensor& all, const at::Tensor& rows, int64_t begin) const;
  void end_backward();
  struct Qkv {
    at::Tensor q, k, v;
  };
  std::shared_ptr<const Llama::Rope> rope_of(int64_t begin, int64_t count) const;
  Qkv pre_attention_of_all(Layer& l, int layer, bool keeps) const;

  const Llama& model_;
  StepAttention& attention_;
  const int nano_batch_;
  const Options options_;
  at::Tensor ids_, targets_, positions_;                   // [T] one element for each token
  std::shared_ptr<const Llama::Occurrences> occurrences_;  // places of ids_, if they get gradients
  std::shared_ptr<const Llama::Rope> rope_;
  at::Tensor x_;         // running activation
  at::Tensor gradient_;  // running gradient of the activation
  std::vector<Layer> layers_;
  bool is_over_ = false;  // backward is
};

}  // namespace distca
