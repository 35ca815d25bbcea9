#pragma once
// Operators that a Llama has and ATen has not in one piece, each with its backward: autograd has no
// part in them. Each keeps less for backward than the operators of ATen that it is made of and, on
// a CPU, works on blocks of rows that stay in a core's cache. Include <ATen/ATen.h> before this
// header.
//
//     Normed kept;
//     auto qkv = norm_linear(x, weight, eps, {w_q, w_k, w_v}, {}, Keep::kProducts, &kept);
//     q = rotate(qkv[0], rope);
//     ...
//     const at::Tensor h = kept.again(x, weight, eps, type);  // what the matrices have read
//     d_w_q = matrix_gradient(d_qkv[0], h);
//     auto [d_x, d_weight] = norm_linear_backward(kept, x, weight, {w_q, w_k, w_v}, d_qkv);
//
// The gradient by a matrix is apart from that by the rows, because nobody waits for it. The
// letters: T rows, C features, I inner features. Results and gradients do not depend on the number
// of threads, but for what ATen's matrix products do. Thread rule: as ATen's operators.

#include <utility>
#include <vector>

namespace distca {

/// The data that stays in memory between an operator's forward and backward, in addition to its
/// inputs.
enum class Keep : unsigned char {
  kProducts,  // the rows that its matrix product reads
  kInputs,    // nothing: backward computes those rows again
};

/// The tensors that a norm leaves for its backward.
struct Normed {
  at::Tensor factors;  // [T, 1] by which rows were multiplied
  at::Tensor rows;     // [T, C] the result, where it is kept

  /// The result: as it was kept, or computed again, in `type`.
  at::Tensor again(const at::Tensor& x, const at::Tensor& weight, double eps,
                   at::ScalarType type) const;
};

/// x [T, C] -> rms_norm(x) * weight, times each of the matrices [n, C]: [T, n] each. The norm is
/// computed in the type of `weight` [C], the products in that of the matrices. `biases`, in the
/// type of `weight`, are none or one [n] for each matrix, and are added to its product. `kept` is
/// null where there is no backward.
std::vector<at::Tensor> norm_linear(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    const std::vector<at::Tensor>& matrices,
                                    const std::vector<at::Tensor>& biases, Keep keep, Normed* kept);
/// The gradients by x and by the weight, of those by the results.
std::pair<at::Tensor, at::Tensor> norm_linear_backward(const Normed& kept, const at::Tensor& x,
                                                       const at::Tensor& weight,
                                                       const std::vector<at::Tensor>& matrices,
                                                       const std::vector<at::Tensor>& d_results);

// The two halves of norm_linear(), for rows that others gather in between.

/// x [T, C] -> rms_norm(x) * weight in `type`, and the factors [T, 1], which backward needs.
std::pair<at::Tensor, at::Tensor> norm_rows(const at::Tensor& x, const at::Tensor& weight,
                                            double eps, at::ScalarType type);
/// The gradients by x and by the weight. The former may take the place of `d_y`.
std::pair<at::Tensor, at::Tensor> norm_rows_backward(const at::Tensor& d_y, const at::Tensor& x,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& factors);
/// rows [T, C] times each of the matrices [n, C], with its bias if there are any: [T, n] each.
std::vector<at::Tensor> products(const at::Tensor& rows, const std::vector<at::Tensor>& matrices,
                                 const std::vector<at::Tensor>& biases);
/// Writes the sum of the products rows[i] * matrices[i], of [T, n] and [n, C], to `sum` [T, C],
/// which may be a part of a tensor. For the gradients by results of products(), that is the
/// gradient by what these read.
void sum_of_products(const std::vector<at::Tensor>& rows, const std::vector<at::Tensor>& matrices,
                     at::Tensor& sum);

/// d_y^T rows [n, C]: the gradient of a matrix that was multiplied with `rows` [T, C] to give y
/// [T, n].
at::Tensor matrix_gradient(const at::Tensor& d_y, const at::Tensor& rows);
/// The sum of the rows d_y [T, n] in `type`: the gradient of a bias.
at::Tensor bias_gradient(const at::Tensor& d_y, at::ScalarType type);

/// gate and up [T, I] -> silu(gate) * up [T, I].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
/// `d_up` is the gradient by the product and becomes that by `up`. `d_gate` [T, I] becomes that by
/// `gate`, whatever it was.
void swiglu_backward(const at::Tensor& gate, const at::Tensor& up, at::Tensor& d_gate,
                     at::Tensor& d_up);

/// Cosines and sines [T, 1, D] of some positions, in the type in which RoPE is computed. Both
/// halves have the same angles; the sines of the first one are negated.
struct Rope {
  at::Tensor cosines, sines;

  Rope part(int64_t begin, int64_t count) const;
};
/// RoPE of x [T, heads, D] in Hugging Face's half-split form. Backward turns in direction -1.
at::Tensor rotate(const at::Tensor& x, const Rope& rope, double direction = 1);

/// rotate() of rms_norm(x) * weight, the norm of each head; weight [D]. `factors` becomes
/// [T, heads, 1], which backward needs.
at::Tensor norm_rotate(const at::Tensor& x, const at::Tensor& weight, double eps, const Rope& rope,
                       at::Tensor* factors);
/// The gradients by x and by the weight.
std::pair<at::Tensor, at::Tensor> norm_rotate_backward(const at::Tensor& d_y, const at::Tensor& x,
                                                       const at::Tensor& weight,
                                                       const at::Tensor& factors, const Rope& rope);

}  // namespace distca
