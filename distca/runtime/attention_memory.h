#pragma once
// Predicts what core attention takes on a CUDA device while it runs, besides the rows of homes and
// messages: the memory of ATen's operators and of the launches around them
// (kernels/varlen_memory.h), for the tasks that a rank has under a plan. Any thread may call the
// function.

#include <array>
#include <cstdint>

#include "distca/kernels/varlen_memory.h"
#include "distca/plan/attention_exchange.h"

namespace distca {

/// [TaskSet][Pass] Bytes at the most, of one layer.
using AttentionMemory = std::array<std::array<int64_t, 2>, kNumTaskSets>;

/// Returns the memory for the tasks that go through a fused operator (runtime/cuda/cuda_attention.h
/// says which); those that take the matmul path are not counted. Received rows are taken to be
/// aligned, as local ones are.
AttentionMemory cuda_attention_memory(const AttentionExchange& exchange,
                                      const kernels::Shape& shape, ScalarType type,
                                      const kernels::FlashDevice& device);

}  // namespace distca
