#pragma once
// A Llama-type decoder as phases: everything but core attention. Pre-attention is norm, QKV
// projection and RoPE by position in the document; post-attention is output projection, residual,
// norm and SwiGLU MLP (paper 2).
//
// Letters: T local tokens, C hidden_size, H query heads, G key/value heads, D head_dim, V
// vocab_size. Parameters are fp32 masters (fp64 for fp64); phases compute in `dtype`. Autograd
// lives inside a phase: it records when grad mode is on and its inputs or parameters require
// gradients; the caller runs each phase's backward. Thread rule: one thread a model.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/json.h"
#include "distca/base/scalar_type.h"
#include "distca/cost/memory_price.h"
#include "distca/kernels/attention.h"

namespace at {
class Tensor;
}

namespace distca {

/// Names and meaning as in Hugging Face's LlamaConfig.
struct LlamaConfig {
  int64_t vocab_size = 256;
  int64_t hidden_size = 256;
  int64_t intermediate_size = 704;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 2;
  int64_t head_dim = 64;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-5;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  int64_t sliding_window = 0;  // tokens each query sees, itself included; 0 = all
  ScalarType dtype = ScalarType::kFloat32;

  /// Throws Error(kConfig) naming the values that do not fit each other.
  void check() const;
  int64_t num_parameters() const;
  /// Sizes as the planner and programs know them.
  ModelShape shape() const;
  /// Of one layer's core attention.
  kernels::Shape attention_shape() const;
  /// Floating-point operations of one training step (forward and twice that backward) over `tokens`
  /// tokens whose causal attention has `pairs` (query, key) pairs. Counts matrix products; ignores
  /// norms, RoPE, softmax.
  double train_flops(int64_t tokens, int64_t pairs) const;
  /// config.json of a Hugging Face LlamaForCausalLM (MistralForCausalLM with a window);
  /// `max_position_embeddings` in tokens.
  Json to_hugging_face(int64_t max_position_embeddings) const;
};

class Llama {
 public:
  /// Every rank draws the same weights from the seed, whatever the dtype and the machine.
  /// `cuda_device` -1: CPU.
  Llama(const LlamaConfig& config, uint64_t seed, int cuda_device);
  ~Llama();

  const LlamaConfig& config() const;

  /// Cosines and sines of the given positions [T] (int64), shared by all layers of a nano-batch.
  struct Rope;
  std::shared_ptr<const Rope> rope(const at::Tensor& positions) const;

  /// ids [T] int64 -> x [T, C].
  at::Tensor embed(const at::Tensor& ids) const;
  /// x [T, C] -> q [T, H, D], k [T, G, D], v [T, G, D].
  void pre_attention(int layer, const at::Tensor& x, const Rope& rope, at::Tensor* q, at::Tensor* k,
                     at::Tensor* v) const;
  /// x [T, C] (the input of pre_attention), o [T, H, D] -> [T, C].
  at::Tensor post_attention(int layer, const at::Tensor& x, const at::Tensor& o) const;
  /// Sum over rows of the cross entropy (nats) of targets [T] int64, -100 = no target; scalar, fp32
  /// or fp64.
  at::Tensor loss_sum(const at::Tensor& x, const at::Tensor& targets) const;

  /// Hugging Face names, in a fixed order; tensors share memory with the model.
  const std::vector<std::string>& parameter_names() const;
  const std::vector<at::Tensor>& parameters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
