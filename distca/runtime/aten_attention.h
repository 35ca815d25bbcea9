#pragma once
// Core attention of a list of tasks through ATen, behind the interface of kernels/attention.h
// (letters and shapes there). Tensors are wrapped where they lie; on CPU keys are never gathered.
//
// CPU, D = E, no softcap: each task is cut into full and causal parts (kernels/mask_parts.h) that
// go through ATen's flash attention; more than one part of a query is merged by LSE in fp32 (fp64
// for fp64). In bf16 ATen rounds every part's O, so a merged O carries one rounding more; its
// backward sums a part's gradients in bf16 over runs of 32 to 256 queries, we sum parts in fp32.
// The left edge of a window goes through the matmul path. CUDA: runtime/cuda_attention.h. CPU, D !=
// E or softcap: the matmul path, ATen's matrix products and a masked softmax in fp32 (fp64 for
// fp64) over parts of at most 512 x 512: correct on any device, not fast.
//
// Same tasks, same bits; other cuts of the same document differ by rounding.
// `cuda_device`: where all pointers live, -1 = CPU. Broken shapes and lists are a CHECK; a softcap
// on CUDA, whose operators have none, is an Error(kConfig). Thread rule: calls on disjoint outputs
// may run at the same time; ATen uses its own thread pool.

#include <cstdint>
#include <optional>

#include "distca/base/scalar_type.h"
#include "distca/kernels/attention.h"

namespace distca {

/// `type`: of Q, K, V and, unless `o_type` says otherwise, of O; fp32 (fp64 for fp64) for partial
/// results that the caller merges. Returns the bytes copied to and from the operator: 0 on CPU.
int64_t aten_forward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                     int cuda_device, std::optional<ScalarType> o_type = std::nullopt);

/// Gradients are added to dq, dk, dv. ATen wants O instead of delta and gets one whose row sum with
/// dO is delta. Returns the bytes copied, as aten_forward.
int64_t aten_backward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                      int cuda_device);

/// The matmul path by itself, for any device and any mask.
void aten_matmul_forward(const kernels::Shape& shape, ScalarType type,
                         const kernels::TaskList& list, int cuda_device,
                         std::optional<ScalarType> o_type = std::nullopt);
void aten_matmul_backward(const kernels::Shape& shape, ScalarType type,
                          const kernels::TaskList& list, int cuda_device);

}  // namespace distca
