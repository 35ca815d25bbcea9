#pragma once
// A rank's tasks in the kernel's words: the blocks that plan/exchange.h names (block 0 the local
// tensors, block i + 1 what was received from receives[i]) are the buffers of the list. Tensors are
// [rows, heads, dim], last dimension contiguous; one that a rank does not have is undefined.
// Letters: kernels/attention.h. Thread rule: pure functions; a list points into its tensors.

#include <cstdint>

#include "distca/kernels/attention.h"
#include "distca/plan/exchange.h"

namespace at {
class Tensor;
}

namespace distca {

/// Rows of a tensor from `row` on.
kernels::Rows rows_of(const at::Tensor& tensor, int64_t row = 0);

/// Adds a block as the next query buffer and the next key buffer.
void add_forward_block(kernels::TaskList& list, const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, const at::Tensor& o, const at::Tensor& lse);
void add_backward_block(kernels::TaskList& list, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, const at::Tensor& d_o, const at::Tensor& lse,
                        const at::Tensor& delta, const at::Tensor& dq, const at::Tensor& dk,
                        const at::Tensor& dv);

/// A causal task on the blocks of a list that begins with block 0. `window_left`: as in Mask.
kernels::Task block_task(const ServerTask& task, int64_t window_left);

}  // namespace distca
