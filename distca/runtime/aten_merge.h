#pragma once
// Merging partial results over parts of the keys (split-KV) on any device: the interface of
// kernels/merge.h through ATen. Thread rule: calls on disjoint outputs may run at the same time.

#include <span>

#include "distca/kernels/merge.h"

namespace distca {

/// kernels::merge_partials, summed in the order of `parts` in the accumulator's type. One part
/// alone is copied. `result` is none of `parts`. `cuda_device`: where all pointers live, -1 = CPU.
/// Same parts, same bits.
void aten_merge(const kernels::RowShape& shape, ScalarType type,
                std::span<const kernels::Partial> parts, const kernels::Partial& result,
                int cuda_device);

}  // namespace distca
