#pragma once
// A decoder of Llama's kind, divided into phases that contain everything but core attention.
// Pre-attention is the norm, the QKV projection and RoPE by position in the document.
// Post-attention is the output projection, the residual, the norm and the SwiGLU MLP (paper 2).
//
//     Llama model(config, /*seed=*/1, /*cuda_device=*/-1);
//     at::Tensor x = model.embed(ids), q, k, v;
//     const auto rope = model.rope(positions);
//     model.pre_attention(layer, x, *rope, &q, &k, &v);
//     x = model.post_attention(layer, x, o);  // o: core attention of q, k, v
//
// Letters: T local tokens, C hidden_size, H query heads, G key/value heads, D head_dim, V
// vocab_size.
//
// Parameters are fp32 masters (fp64 for an fp64 model); phases compute in `dtype`. Autograd lives
// inside a phase: the phase records if grad mode is on and its inputs or parameters require
// gradients, and the caller runs its backward. Thread rule: one thread a model.

#include <cstdint>
#include <memory>
#include <vector>

#include "distca/model/llama_config.h"
#include "distca/model/weight_table.h"

namespace at {
class Tensor;
}

namespace distca {

/// The weights of a model and its phases.
class Llama {
 public:
  /// Draws the initial weights from the seed. They are the same on every rank and machine, for
  /// every dtype. `cuda_device` is -1 for the CPU.
  Llama(const LlamaConfig& config, uint64_t seed, int cuda_device);
  ~Llama();

  const LlamaConfig& config() const;

  /// Cosines and sines of some positions, which all layers of a nano-batch share.
  struct Rope;
  /// `positions` [T] int64 are those in the document.
  std::shared_ptr<const Rope> rope(const at::Tensor& positions) const;

  /// ids [T] int64 -> x [T, C].
  at::Tensor embed(const at::Tensor& ids) const;
  /// x [T, C] -> q [T, H, D], k [T, G, D], v [T, G, D].
  void pre_attention(int layer, const at::Tensor& x, const Rope& rope, at::Tensor* q, at::Tensor* k,
                     at::Tensor* v) const;
  /// x [T, C], which was the input of pre_attention, and o [T, H, D] -> the next layer's x [T, C].
  at::Tensor post_attention(int layer, const at::Tensor& x, const at::Tensor& o) const;
  /// x [T, C] of the last layer, targets [T] int64 (-100: no target) -> the sum of the cross
  /// entropy over all targets, in nats. It is a scalar in fp32, or fp64 for an fp64 model.
  at::Tensor loss_sum(const at::Tensor& x, const at::Tensor& targets) const;

  /// What the weights are, and the weights in the same order. The tensors share memory with the
  /// model.
  const std::vector<Weight>& weights() const;
  const std::vector<at::Tensor>& parameters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
