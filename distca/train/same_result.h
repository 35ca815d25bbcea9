#pragma once
// Compares the results of two steps: how far two tensors are apart, and how far they may be (DESIGN
// rule 1). Any thread may call these functions.
//
//     const double bound = format_bound(model.dtype, model.num_hidden_layers, batch_tokens);
//     if (!(difference(gradient, reference) <= bound)) ...  // written so that NaN is a difference

#include <cstdint>

#include "distca/base/scalar_type.h"

namespace at {
class Tensor;
}

namespace distca {

/// max|a - b| / max|b|. Where b is exactly zero, it is max|a - b|, which zero_bound bounds. NaN if
/// an element of a is NaN. Both have the same shape and at least one element.
double difference(const at::Tensor& a, const at::Tensor& b);

/// How far the loss and every gradient of a step may be apart if the step is only rounded in
/// another order: 1e-10 in fp64. In fp32 and bf16 it follows from the roundings along the longest
/// chain of a model of `num_layers` layers, and from sums over `num_rows` tokens.
double format_bound(ScalarType dtype, int64_t num_layers, int64_t num_rows);

/// The bound of the absolute difference where the reference is exactly zero: 1e-12 in fp64.
/// `format_bound` is that of the format.
constexpr double zero_bound(double format_bound) { return 1e-2 * format_bound; }

}  // namespace distca
