#pragma once
// A tensor as the kernels see it: for callers of kernels/attention.h that hold their rows in
// tensors. Any thread.
//
//     list.keys.push_back({.tokens = k.size(0), .k = rows_of(k), .v = rows_of(v)});

#include <cstdint>

#include "distca/kernels/attention.h"

namespace at {
class Tensor;
}

namespace distca {

/// Rows of a [tokens, heads, dim] tensor, contiguous in dim, from `row` on; of an undefined tensor
/// none. The tensor must outlive them.
kernels::Rows rows_of(const at::Tensor& tensor, int64_t row = 0);

}  // namespace distca
