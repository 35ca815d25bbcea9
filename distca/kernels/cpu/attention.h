#pragma once
// Core attention on the CPU: a fused kernel over a list of tasks (kernels/attention.h; letters and
// shapes there), near the processor's peak. Never a score matrix in memory. How: docs/kernels.md.
//
// Types: fp32 and bf16 inputs, fp32 accumulation. Head dims: multiples of 8 up to 256; D and E may
// differ. GQA: a key head is loaded once for all the query heads that read it.
// Plan-independent forward: keys are summed in key tiles aligned to the document's start, and the
// arithmetic of a row does not depend on the rows beside it, so O and LSE are bitwise the same
// however the queries of a document were cut into tasks and its keys into ranges, and for every
// number of threads (for the same instruction set; split-KV differs by rounding). A row that
// is NaN is NaN however it was cut; the payload bits of its NaNs are not promised.
// Backward: bitwise the same for the same list of tasks, for every number of threads. Tasks that
// add to the same rows of dq, dk or dv do so in the order of the list. dQ, too, does not depend on
// the cuts where each task has all the keys that its rows see. Not finite: K and V behind a row's
// mask do not touch it. In backward a row of Q or dO that is not finite may spoil dK and dV of keys
// that it does not see, in the tiles of 64 keys of which rows beside it see some. Errors: broken
// shapes and lists are a CHECK (kernels/task_list.h). Thread rule: calls on disjoint outputs and
// different pools may run at the same time.

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/isa.h"
#include "distca/kernels/cpu/thread_pool.h"

namespace distca::kernels {

/// Whether the kernel computes this: fp32 or bf16, head dims up to 256.
bool cpu_supports(const Shape& shape, ScalarType type);

/// `type`: of Q, K, V. `o_type`: of O, `type` or fp32 (partial results that the caller merges).
void cpu_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list,
                 ThreadPool& pool, Isa isa = chosen_isa());

/// dO is of `type`; gradients are added to dq, dk, dv in fp32.
void cpu_backward(const Shape& shape, ScalarType type, const TaskList& list, ThreadPool& pool,
                  Isa isa = chosen_isa());

}  // namespace distca::kernels
