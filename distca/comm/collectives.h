#pragma once
// Small collectives over point-to-point, for control data in host memory (plans' hashes, measured
// speeds, sizes). P = ranks, n = bytes. All ranks call them in the same order with the same sizes.
// On a CUDA group the bytes are staged through the device. Errors: as Communicator.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "distca/comm/communicator.h"

namespace distca {

/// Returns after every rank has entered. ceil(log2 P) steps of one byte each way.
void barrier(Communicator& group, std::string_view operation);

/// [P * mine.size()] every rank's record, in rank order. One step; each sends (P - 1) n bytes.
std::vector<std::byte> all_gather_bytes(Communicator& group, std::span<const std::byte> mine,
                                        std::string_view operation);

}  // namespace distca
