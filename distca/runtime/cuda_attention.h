#pragma once
// Core attention of a list of tasks on CUDA, behind the interface of kernels/attention.h, through
// ATen's fused operators, reached by dispatch: no CUDA is needed to compile.
//
// bf16: FlashAttention's variable-length operators, every task of a call in as few launches as
//   masks and memory allow (kernels/varlen_launches.h). head_dim_qk = head_dim_v <= 256.
// fp32: efficient attention, a call a sequence; windows through the matmul path.
// fp64, head dims that differ or exceed 256, keys with a gap: the matmul path of aten_attention.h.
//
// Same tasks, same bits in forward; in backward only after
// at::globalContext().setDeterministicAlgorithms(true, false), which the operators read
// (docs/kernels.md). A softcap is refused with an Error(kConfig): none of these operators has one.
// Thread rule: calls on disjoint outputs may run at the same time.

#include <cstdint>

#include "distca/base/scalar_type.h"
#include "distca/kernels/attention.h"

namespace distca {

/// As aten_forward and aten_backward. Both return the bytes they copied: keys gathered, rows
/// packed, O and LSE put where they belong.
int64_t cuda_forward(const kernels::Shape& shape, ScalarType type, ScalarType o_type,
                     const kernels::TaskList& list, int cuda_device);
int64_t cuda_backward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                      int cuda_device);

}  // namespace distca
