#pragma once
// rows_of() shows a tensor as the kernels see it. It is for callers of kernels/attention.h that
// hold their rows in tensors, and may be called from any thread:
//
//     list.keys.push_back({.tokens = k.size(0), .k = rows_of(k), .v = rows_of(v)});

#include <cstdint>

#include "distca/kernels/attention.h"

namespace at {
class Tensor;
}

namespace distca {

/// The rows of a [tokens, heads, dim] tensor from `row` on. The tensor is contiguous in dim and
/// must outlive the rows. An undefined tensor has no rows.
kernels::Rows rows_of(const at::Tensor& tensor, int64_t row = 0);

}  // namespace distca
