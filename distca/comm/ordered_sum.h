#pragma once
// The sum over ranks whose bits are promised: ((x0 + x1) + x2) + ... element by element, the same
// on every rank, for every backend and every position in the buffer.
//
// Steps for each chunk of P slices (P ranks, n bytes in all):
//  1. every rank sends slice q to rank q                        n (P - 1) / P bytes out
//  2. the owner of a slice adds what it has, in rank order
//  3. the owner sends the sum to all others                     n (P - 1) / P bytes out
// Scratch: at most 16 MiB (one element for each other rank at least), whatever the tensor's size.
// Errors: as Communicator. All ranks call with the same size and type.

#include <span>
#include <string_view>

#include "distca/comm/communicator.h"

namespace at {
class Tensor;
}

namespace distca {

/// In place. `tensor` is contiguous, fp32 or fp64, where the group's messages lie; anything else is
/// a CHECK (sum bf16 gradients in fp32).
void ordered_sum(Communicator& group, at::Tensor& tensor, std::string_view operation);

/// In place, host memory on every backend.
void ordered_sum(Communicator& group, std::span<double> values, std::string_view operation);

}  // namespace distca
