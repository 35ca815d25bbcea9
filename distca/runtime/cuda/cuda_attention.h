#pragma once
// These functions compute core attention of a list of tasks on CUDA, behind the interface of
// kernels/attention.h, through ATen's fused operators. The operators are reached by dispatch, so
// CUDA is not needed to compile this.
//
// The operator that computes a task depends on its type:
//  - bf16 goes through FlashAttention's variable-length operators, if head_dim_qk = head_dim_v is
//    at most 256. All tasks of a call go in as few launches as masks and memory allow
//    (kernels/varlen_launches.h).
//  - fp32 goes through efficient attention, with one call for each sequence. Windows take the
//    matmul path.
//  - fp64 takes the matmul path of aten_attention.h. So do head dims that differ or exceed 256, and
//    keys with a gap.
//
// The same tasks give the same bits in forward. In backward they do so only after
// at::globalContext().setDeterministicAlgorithms(true, false), which the operators read
// (docs/kernels.md). A softcap is an Error(kConfig), because none of these operators has one.
//
// Threads. Calls on disjoint outputs may run at the same time.

#include <cstdint>
#include <memory>

#include "distca/base/scalar_type.h"
#include "distca/cost/pass.h"
#include "distca/kernels/attention.h"

namespace distca {

class TaskLaunches;
class VarlenOperator;

/// Makes the operator for the tasks that are fused: FlashAttention in bf16, efficient attention in
/// fp32 (runtime/cuda/varlen_attention.h).
std::unique_ptr<VarlenOperator> fused_operator(const kernels::Shape& shape, ScalarType type);

/// Makes the launches of cuda_forward or cuda_backward ahead of the first call. The rows of the
/// list may not be known yet: they are taken to be aligned, and launches are made again where they
/// are not.
void cuda_prepare(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                  int cuda_device, Pass pass, TaskLaunches* launches);

/// Do what aten_forward and aten_backward do. Both return the bytes that they copied: gathered
/// keys, packed rows, and O and LSE that were put where they belong.
int64_t cuda_forward(const kernels::Shape& shape, ScalarType type, ScalarType o_type,
                     const kernels::TaskList& list, int cuda_device,
                     TaskLaunches* launches = nullptr);
int64_t cuda_backward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                      int cuda_device, TaskLaunches* launches = nullptr);

}  // namespace distca
