#pragma once
// FlashAttention 4 behind the launches of kernels/varlen_launches.h, by kernels that were compiled
// ahead of time (compiled_kernels.h). Any thread may call the function; the operator is one
// thread's.

#include <memory>

#include "distca/kernels/attention.h"

namespace distca {

class CompiledKernels;
class VarlenOperator;

/// The kernels must be without a fault for the shape and bf16 (CHECK), and outlive the operator.
/// Backward has the same bits for the same tasks where ATen is told to be deterministic.
std::unique_ptr<VarlenOperator> flash4_operator(const kernels::Shape& shape,
                                                const CompiledKernels& kernels);

}  // namespace distca
