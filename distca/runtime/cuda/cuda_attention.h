#pragma once
// These functions compute core attention of a list of tasks on CUDA, behind the interface of
// kernels/attention.h, through ATen's fused operators. The operators are reached by dispatch, so
// CUDA is not needed to compile this.
//
// The operator that computes a task depends on its type:
//  - bf16 goes through FlashAttention's variable-length operators, ATen's of FlashAttention 2 or
//    kernels of FlashAttention 4 that were compiled ahead of time (compiled_kernels.h), if
//    head_dim_qk = head_dim_v is at most 256. All tasks of a call go in as few launches as masks
//    and memory allow (kernels/varlen_launches.h).
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
#include "distca/kernels/kernel_choice.h"

namespace distca {

class CompiledKernels;
class TaskLaunches;
class VarlenOperator;

/// The launches that FlashAttention 4 computes: none without `kernels`, which must be without a
/// fault for the shape and the type, bf16; all without `measured`.
struct Flash4 {
  const CompiledKernels* kernels = nullptr;
  const MeasuredKernels* measured = nullptr;
};

/// Makes the operator for the tasks that are fused: FlashAttention in bf16, efficient attention in
/// fp32.
std::unique_ptr<VarlenOperator> fused_operator(const kernels::Shape& shape, ScalarType type,
                                               const Flash4& flash4 = {});

/// Makes the launches of cuda_forward or cuda_backward ahead of the first call. The rows of the
/// list may not be known yet: they are taken to be aligned, and launches are made again where they
/// are not.
void cuda_prepare(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                  int cuda_device, Pass pass, TaskLaunches* launches, const Flash4& flash4 = {});

/// Do what aten_forward and aten_backward do on a CPU. Both return the bytes that they copied:
/// gathered keys, packed rows, and O and LSE that were put where they belong.
int64_t cuda_forward(const kernels::Shape& shape, ScalarType type, ScalarType o_type,
                     const kernels::TaskList& list, int cuda_device,
                     TaskLaunches* launches = nullptr, const Flash4& flash4 = {});
int64_t cuda_backward(const kernels::Shape& shape, ScalarType type, const kernels::TaskList& list,
                      int cuda_device, TaskLaunches* launches = nullptr, const Flash4& flash4 = {});

}  // namespace distca
