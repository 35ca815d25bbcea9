#pragma once
// Core attention on the CPU: a fused kernel over a list of tasks (kernels/attention.h has letters,
// shapes and an example), which runs near the processor's peak. A score matrix never lies in
// memory. docs/kernels.md explains how it works.
//
// Types: inputs are fp32 or bf16, sums are fp32. Head dims: multiples of 8 up to 256; D and E may
// differ. GQA: a key head is loaded once for all the query heads that read it.
//
// Same bits, forward: O and LSE of a row do not depend on how the queries of its document were cut
// into tasks and its keys into ranges, on the rows next to it, or on the number of threads. The
// reason is that keys are summed in key tiles that are aligned to the document's start. This holds
// for one instruction set; plans with split-KV differ by rounding. A row that is NaN is NaN however
// it was cut, but the payload bits of its NaNs are not promised.
//
// Same bits, backward: the same list of tasks gives the same bits with every number of threads.
// Tasks that add to the same rows of dq, dk or dv do so in the order of the list. dQ does not
// depend on the cuts either, if each task has all the keys that its rows see.
//
// Numbers that are not finite: keys and values behind a row's mask do not affect it. In backward, a
// row of Q or dO that is not finite may spoil dK and dV of keys that it does not see, in key tiles
// of 64 keys that rows next to it see in part.
//
// Errors: a wrong shape or list is a CHECK (kernels/task_list.h). Thread rule: calls whose outputs
// are disjoint may run at the same time if they have different pools.

#include "distca/kernels/attention.h"
#include "distca/kernels/cpu/isa.h"
#include "distca/kernels/cpu/thread_pool.h"

namespace distca::kernels {

struct Engine;

/// Returns true if this kernel computes such attention: fp32 or bf16, head dims up to 256.
bool cpu_supports(const Shape& shape, ScalarType type);

/// `type` is that of Q, K and V. `o_type` is that of O: `type`, or fp32 for partial results that
/// the caller merges.
void cpu_forward(const Shape& shape, ScalarType type, ScalarType o_type, const TaskList& list,
                 ThreadPool& pool, Isa isa = chosen_isa());

/// dO is of `type`. Gradients are added to dq, dk and dv in fp32.
void cpu_backward(const Shape& shape, ScalarType type, const TaskList& list, ThreadPool& pool,
                  Isa isa = chosen_isa());
/// Runs on the given engine, for tests of the order of items.
void cpu_backward(const Shape& shape, ScalarType type, const TaskList& list, ThreadPool& pool,
                  const Engine& engine);

}  // namespace distca::kernels
