#pragma once
// Operators that a Llama has and ATen has not in one piece. Each keeps less for backward than the
// operators of ATen that it is made of and, on a CPU, works on blocks of rows that stay in a core's
// cache.
//
//     auto qkv = norm_linear(x, weight, eps, {w_q, w_k, w_v}, Keep::kProducts);
//     q = rotate(qkv[0], cosines, sines);
//     y = swiglu_linear(gate, up, w_down, Keep::kProducts);
//
// The letters: T rows, C features, I inner features. Results and gradients do not depend on the
// number of threads, but for what ATen's matrix products do. Thread rule: as ATen's operators.

#include <vector>

namespace at {
class Tensor;
}

namespace distca {

/// The data that stays in memory between an operator's forward and backward, in addition to its
/// inputs.
enum class Keep : unsigned char {
  kProducts,  // the rows that its matrix product reads
  kInputs,    // nothing: backward computes those rows again
};

/// x [T, C] -> rms_norm(x) * weight, times each of one to three matrices [n, C]: [T, n] each. The
/// norm is computed in the type of `weight` [C], the products in that of the matrices. `biases`, in
/// the type of `weight`, are none or one [n] for each matrix, and are added to its product.
std::vector<at::Tensor> norm_linear(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    const std::vector<at::Tensor>& matrices, Keep keep,
                                    const std::vector<at::Tensor>& biases = {});

/// gate and up [T, I], matrix [C, I] -> linear(silu(gate) * up, matrix) [T, C].
at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& matrix,
                         Keep keep);

/// RoPE in Hugging Face's half-split form: x [T, heads, D], cosines and sines [T, 1, D], in whose
/// type it is computed. Both halves have the same angles; the sines of the first one are negated.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines);

/// rotate() of rms_norm(x) * weight, the norm of each head; weight [D].
at::Tensor norm_rotate(const at::Tensor& x, const at::Tensor& weight, double eps,
                       const at::Tensor& cosines, const at::Tensor& sines);

}  // namespace distca
