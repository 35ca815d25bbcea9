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

/// The shape of a model. Names and meaning are those of Hugging Face's LlamaConfig; `distca train
/// --print-config` prints a reason for each.
struct LlamaConfig {
  int64_t vocab_size = 256;         // tokens; 256 are the byte tokenizer's
  int64_t hidden_size = 256;        // width of the residual stream
  int64_t intermediate_size = 704;  // width of the MLP
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;  // query heads
  int64_t num_key_value_heads = 2;  // divides num_attention_heads; fewer of them is GQA
  int64_t head_dim = 64;            // a multiple of 8
  double rope_theta = 10000.0;      // base of the rotary position embedding
  double rms_norm_eps = 1e-5;
  double initializer_range = 0.02;          // standard deviation of the initial weights
  bool tie_word_embeddings = false;         // the head uses the embedding's weights
  int64_t sliding_window = 0;               // tokens that each query sees, itself included; 0: all
  ScalarType dtype = ScalarType::kFloat32;  // of activations and matrix products

  /// Throws Error(kConfig) with the values that do not fit each other.
  void check() const;
  int64_t num_parameters() const;
  /// The number of parameters in the matrices of one layer.
  int64_t layer_matrices() const;
  /// The sizes that the planner and programs need.
  ModelShape shape() const;
  /// The shape of one layer's core attention.
  kernels::Shape attention_shape() const;
  /// Floating-point operations of one training step over `tokens` tokens whose causal attention has
  /// `pairs` (query, key) pairs. Backward counts as twice forward.
  /// Counts: matrix products. Ignores: norms, RoPE, softmax.
  double train_flops(int64_t tokens, int64_t pairs) const;
  /// The config.json of a Hugging Face LlamaForCausalLM, or MistralForCausalLM if there is a
  /// window. `max_position_embeddings` is in tokens.
  Json to_hugging_face(int64_t max_position_embeddings) const;
};

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

  /// Hugging Face's names, in a fixed order, and the parameters in the same order. The tensors
  /// share memory with the model.
  const std::vector<std::string>& parameter_names() const;
  const std::vector<at::Tensor>& parameters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca
