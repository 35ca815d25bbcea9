#pragma once
// A tensor as the kernels see it: for callers of kernels/attention.h that hold their rows in
// tensors. Any thread.
//
//     list.keys.push_back({.tokens = k.size(0), .k = rows_of(k), .v = rows_of(v)});

#include <ATen/ATen.h>

#include "distca/kernels/attention.h"

namespace distca {

/// Rows of a [tokens, heads, dim] tensor, contiguous in dim, from `row` on; of an undefined tensor
/// none. The tensor must outlive them.
inline kernels::Rows rows_of(const at::Tensor& tensor, int64_t row = 0) {
  if (!tensor.defined()) return {};
  const int64_t offset = row * tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
  return {.data = static_cast<std::byte*>(tensor.data_ptr()) + offset,
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1)};
}

}  // namespace distca
