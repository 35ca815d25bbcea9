#pragma once
// How many bytes launches of variable-length attention take on a device while they run, besides the
// rows that the caller has: what ATen's operators allocate for themselves (PyTorch 2.11 to 2.13;
// _flash_attention_forward and _backward in bf16, _efficient_attention_forward and _backward in
// fp32), and what runtime/ packs, gathers and converts around them. It needs no device: what
// decides comes in as numbers.
//
//     const FlashDevice device{.multiprocessors = 132, .deterministic = true};
//     const int64_t most = varlen_backward_memory(shape, type, list, device);
//
// Thread rule: pure functions.

#include <cstdint>

#include "distca/kernels/attention.h"
#include "distca/kernels/varlen_launches.h"

namespace distca::kernels {

/// The properties of a device that decide how much the operators allocate.
struct FlashDevice {
  int64_t multiprocessors = 132;  // an H100 or H200 has 132
  bool deterministic = false;     // at::globalContext().deterministicAlgorithms()
  bool flash4 = false;            // in bf16, FlashAttention 4 computes, not ATen's operators
  bool flash4_for_some = false;   // likewise, but for launches of some lengths alone
};

/// One call of the operator.
struct FlashCall {
  int64_t sequences = 1;   // with those that have no queries
  int64_t query_rows = 0;  // rows of Q of all sequences
  int64_t key_rows = 0;    // rows of K that the operator is given
};

/// Bytes that one call of _flash_attention_backward has allocated at its end, dQ, dK and dV among
/// them. Counts: sums of dQ in fp32, with a gap of 128 rows behind each sequence, as often as the
/// deterministic operator divides them; the row sums of dO x O; where key heads are fewer, dK and
/// dV of every query head.
int64_t flash_backward_call_memory(const Shape& shape, ScalarType type, const FlashCall& call,
                                   const FlashDevice& device);

/// Likewise of a backward with FlashAttention 4 (runtime/cuda/flash4_operator.h), at the most.
/// Counts: sums of dQ, delta and LSE in fp32, with a gap of 128 rows behind each sequence; where
/// key heads are fewer, sums of dK and dV likewise. Ignores: the turns of blocks.
int64_t flash4_backward_call_memory(const Shape& shape, ScalarType type, const FlashCall& call);

/// Bytes that a launch takes in fp32, where each sequence is a call of
/// _efficient_attention_backward: dQ, dK and dV of all sequences, and the most that a call makes.
/// Counts: O, dQ, and what the operator multiplies for delta; dK and dV of every query head, and
/// their sums.
int64_t efficient_backward_memory(const Shape& shape, const VarlenLaunch& launch);

/// The most bytes at a time in the forward or the backward of a list, whose keys are read in place
/// where its tasks allow. Ignores: the launches' lists, and what an allocator rounds up.
int64_t varlen_forward_memory(const Shape& shape, ScalarType type, const TaskList& list);
int64_t varlen_backward_memory(const Shape& shape, ScalarType type, const TaskList& list,
                               const FlashDevice& device);

}  // namespace distca::kernels
