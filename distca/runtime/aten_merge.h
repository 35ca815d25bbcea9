#pragma once
// aten_merge() merges partial results over parts of the keys (split-KV) on any device. It has the
// interface of kernels/merge.h and computes through ATen. Calls on disjoint outputs may run at the
// same time.

#include <span>

#include "distca/kernels/merge.h"

namespace distca {

/// Does what kernels::merge_partials does, but sums in the accumulator's type, in the order of
/// `parts`. A single part is copied. `result` must not be one of `parts`. `cuda_device` says where
/// all pointers live; -1 is the CPU. The same parts give the same bits.
void aten_merge(const kernels::RowShape& shape, ScalarType type,
                std::span<const kernels::Partial> parts, const kernels::Partial& result,
                int cuda_device);

}  // namespace distca
