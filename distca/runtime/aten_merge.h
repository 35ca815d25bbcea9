#pragma once
// Merging partial results over key sub-ranges on any device: kernels/merge.h for tensors.
// Thread rule: calls on disjoint outputs may run at the same time.

#include <ATen/core/Tensor.h>

#include <span>

namespace distca {

/// O [T, H, E] of any type and LSE [T, H, 1], fp64 for fp64 inputs, else fp32, of the same rows.
struct AtenPartial {
  at::Tensor o;
  at::Tensor lse;
};

/// lse = log sum_i exp(lse_i), o = sum_i exp(lse_i - lse) o_i, summed in the order of `parts` in
/// LSE's type; a row without any key stays O = 0, LSE = -infinity. One part alone is copied.
/// `result` is written and overlaps no part. Same parts, same bits.
void aten_merge(std::span<const AtenPartial> parts, const AtenPartial& result);

}  // namespace distca
