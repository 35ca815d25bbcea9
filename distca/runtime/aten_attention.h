#pragma once
// These functions compute core attention of a list of tasks through ATen, behind the interface of
// kernels/attention.h, which explains letters and shapes. Tensors are wrapped where they lie. On a
// CPU, keys are never gathered.
//
// There are two ways:
//  - On a CPU with D = E and without softcap, each task is cut into full and causal parts
//    (kernels/mask_parts.h), which go through ATen's flash attention. Several parts of a query are
//    merged by LSE in fp32 (in fp64 for fp64). In bf16, ATen rounds O of every part, so a merged O
//    carries one more rounding. ATen's backward sums the gradients of a part in bf16 over runs of
//    32 to 256 queries; the parts are summed in fp32. The left edge of a window takes the matmul
//    path.
//  - Any other task on a CPU takes the matmul path: ATen's matrix products and a masked softmax, in
//    fp32 (in fp64 for fp64), over parts of at most 512 x 512. It is correct on every device, but
//    it is not fast.
//
// The same tasks give the same bits. Other cuts of the same document differ by rounding.
//
// `cuda_device` says where all pointers live; -1 is the CPU. A broken shape or list is a CHECK. A
// softcap on CUDA is an Error(kConfig), because ATen's operators have none there.
//
// Threads. Calls on disjoint outputs may run at the same time. ATen uses its own thread pool.

#include <cstdint>
#include <optional>

#include "distca/base/scalar_type.h"
#include "distca/kernels/attention.h"

namespace distca {

/// Computes O and LSE on a CPU. `type` is the type of Q, K and V. It is also the type of O unless
/// `o_type` is given: fp32 (fp64 for fp64) for partial results that the caller merges.
void aten_forward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                  std::optional<ScalarType> o_type = std::nullopt);

/// Adds the gradients to dq, dk and dv. ATen asks for O instead of delta; it is given an O whose
/// row sum with dO is delta.
void aten_backward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list);

/// The matmul path alone. It works on every device and with every mask.
void aten_matmul_forward(const kernels::Shape& shape, ScalarType type,
                         const kernels::TaskList& list, int cuda_device,
                         std::optional<ScalarType> o_type = std::nullopt);
void aten_matmul_backward(const kernels::Shape& shape, ScalarType type,
                          const kernels::TaskList& list, int cuda_device);

}  // namespace distca
