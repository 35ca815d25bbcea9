#pragma once
// Between tensors and rows as the kernels see them, for callers of kernels/attention.h that hold
// their rows in tensors:
//
//     list.keys.push_back({.tokens = k.size(0), .k = rows_of(k), .v = rows_of(v)});
//
// The tensors that these functions make are views. No operator of ATen makes them, so they cost
// neither its dispatch nor, on a device, a question to its driver. Any thread may call the
// functions.

#include <array>
#include <cstdint>
#include <initializer_list>

#include "distca/kernels/attention.h"

namespace at {
class Tensor;
}

namespace distca {

/// The rows of a [tokens, heads, dim] tensor from `row` on. The tensor is contiguous in dim and
/// must outlive the rows. An undefined tensor has no rows.
kernels::Rows rows_of(const at::Tensor& tensor, int64_t row = 0);

/// Rows as a [tokens, heads, dim] tensor. It borrows the memory, which lies on `cuda_device`; -1 is
/// the CPU.
at::Tensor tensor_of(const kernels::Rows& rows, ScalarType type, int64_t tokens, int64_t heads,
                     int64_t dim, int cuda_device);
/// Borrowed memory as a tensor of these sizes and strides, both in elements.
at::Tensor tensor_of(void* data, ScalarType type, std::initializer_list<int64_t> sizes,
                     std::initializer_list<int64_t> strides, int cuda_device);
/// Rows [row, row + tokens) of a tensor of three dimensions, whose memory they borrow.
at::Tensor rows_at(const at::Tensor& tensor, int64_t row, int64_t tokens);
/// A contiguous tensor of the elements of `flat` from `begin` on, which keeps the memory alive.
at::Tensor piece_of(const at::Tensor& flat, int64_t begin, const std::array<int64_t, 3>& sizes);

}  // namespace distca
