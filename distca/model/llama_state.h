#pragma once
// The weights of a Llama and what its phases share, for the sources that define them: llama.cc and,
// where ranks divide the matrices, tensor_phases.cc and tensor_loss.cc. Nobody else includes it.
// Letters as in llama.h; heads, inner features and tokens are those that this rank holds. Include
// <ATen/ATen.h> before this header. Thread rule: as Llama.

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/model/llama.h"
#include "distca/model/operators.h"
#include "distca/program/program.h"

namespace distca {

/// The target of a row that has none.
inline constexpr int64_t kNoTarget = -100;

/// A matrix: what phases read, in the compute type, and the parameter, which has the gradient.
struct Matrix {
  at::Tensor used, parameter;
};

/// Weights of one layer; shapes as in Hugging Face: [out, in]. Norms and biases are parameters.
struct LayerWeights {
  at::Tensor input_norm;           // [C]
  Matrix q, k, v;                  // [H * D, C], [G * D, C], [G * D, C]
  std::vector<at::Tensor> biases;  // [H * D], [G * D], [G * D] of q, k, v; Qwen2 alone
  at::Tensor q_norm, k_norm;       // [D]; Qwen3 alone
  Matrix o;                        // [C, H * D]
  at::Tensor post_norm;            // [C]
  Matrix gate, up, down;           // [I, C], [I, C], [C, I]
};

/// x [T, heads, D] -> [T, heads * D].
inline at::Tensor flat(const at::Tensor& x) {
  return x.reshape({x.size(0), x.size(1) * x.size(2)});
}

struct Llama::Occurrences {
  at::Tensor tokens;  // int64, ascending
  at::Tensor places;  // [T] int64, in `tokens`
};

struct Llama::PreAttention {
  Normed norm;      // norm of x, where the phase computes it
  at::Tensor q, k;  // [T, H, D], [T, G, D] that norms of heads read; Qwen3 alone
  at::Tensor q_factors, k_factors;
};

struct Llama::PostAttention {
  at::Tensor after_attention;  // [T, C] x and the projection of o; this and its norm where the
  Normed norm;                 // phase computes them
  at::Tensor gate, up;         // [T, I]
  at::Tensor product;          // [T, I] which `down` reads, where it is kept
};

struct Llama::LeftGradients {
  struct Product {
    at::Tensor parameter, d_y, rows;
  };
  std::vector<Product> products;
};

struct Llama::State {
  LlamaConfig config;
  Stage stage;
  at::ScalarType compute;     // type in which phases compute
  at::ScalarType main_param;  // type of the main params
  at::Device device;
  std::vector<LayerWeights> layers;  // layers of the stage
  at::Tensor embedding;              // [V, C]: the parameter; only on the first stage
  at::Tensor final_norm;             // [C]; this and the head only on the last stage
  Matrix head;                       // [V, C]
  std::vector<Weight> weights;
  std::vector<at::Tensor> parameters;
  std::vector<Matrix> copies;  // whatever has another type than its parameter
  at::Tensor storage;          // memory of all parameters
  at::Tensor frequencies;      // [D / 2] fp64, of RoPE: radians a position
  double rope_factor = 1;      // factor of its cosines and sines

  State(const LlamaConfig& config_in, const Stage& stage_in, int cuda_device)
      : config(config_in),
        stage(stage_in),
        compute(aten_type(config.dtype)),
        main_param(compute == at::kDouble ? at::kDouble : at::kFloat),
        device(aten_device(cuda_device)) {}

  const LayerWeights& layer(int index) const {
    DISTCA_CHECK(stage.layers.contains({index, index + 1}), "layer {} is not of stage {}", index,
                 stage.index);
    return layers[index - stage.layers.begin];
  }
  Matrix matrix(const at::Tensor& parameter) {
    if (compute == parameter.scalar_type()) return {.used = parameter, .parameter = parameter};
    return copies.emplace_back(parameter.to(compute), parameter);
  }
  /// The part of the vocabulary whose rows of the embedding and of the head are here.
  Range own_tokens() const {
    DISTCA_CHECK(stage.is_first() || stage.is_last(), "stage {} has no token", stage.index);
    return (stage.is_first() ? weights.front() : weights.back()).box.front();
  }
  /// Adds to the gradient of a parameter.
  void add(const at::Tensor& parameter, const at::Tensor& gradient) const {
    at::Tensor& sum = parameter.mutable_grad();
    if (!sum.defined()) sum = at::zeros_like(parameter, main_param);
    sum.add_(gradient);
  }
  void add_product(const Matrix& matrix, const at::Tensor& d_y, const at::Tensor& rows,
                   std::shared_ptr<LeftGradients>* left = nullptr) const {
    if (left == nullptr) return add(matrix.parameter, matrix_gradient(d_y, rows));
    if (*left == nullptr) *left = std::make_shared<LeftGradients>();
    (*left)->products.push_back({.parameter = matrix.parameter, .d_y = d_y, .rows = rows});
  }

  /// Makes Q, K and V of their products `rows` [T, heads * D]: norms of heads and RoPE. `left`
  /// takes what backward needs of them.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> place(const LayerWeights& w,
                                                       const std::vector<at::Tensor>& rows,
                                                       const Rope& rope, PreAttention* left) const;
  /// The gradients by these products. V's has memory of its own where `is_left`.
  std::vector<at::Tensor> unplace(const LayerWeights& w, const PreAttention& kept, const Rope& rope,
                                  const at::Tensor& d_q, const at::Tensor& d_k,
                                  const at::Tensor& d_v, bool is_left) const;
  /// Adds the gradients by the matrices and biases of Q, K and V, whose products read h [T, C].
  void add_projections(const LayerWeights& w, const std::vector<at::Tensor>& d_rows,
                       const at::Tensor& h, std::shared_ptr<LeftGradients>* left) const;
  /// All of post_attention() but its last product.
  PostAttention post_attention(int layer, const at::Tensor& x, const at::Tensor& o,
                               Keep keep) const;
  /// The gradient by what the MLP adds -> those by gate and up. Adds that by `down`, and frees gate
  /// and up.
  std::pair<at::Tensor, at::Tensor> inner_backward(const LayerWeights& w, PostAttention& kept,
                                                   const at::Tensor& d_y,
                                                   std::shared_ptr<LeftGradients>* left) const;
};

}  // namespace distca
