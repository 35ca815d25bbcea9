#pragma once
// Ranks as processes, one CUDA device each, that talk through NCCL. Only in builds that CMake found
// its header for (cmake/TorchNccl.cmake); elsewhere make_nccl_group throws Error(kConfig) with what
// was missing.

#include <memory>

#include "distca/comm/communicator.h"
#include "distca/comm/rendezvous.h"

namespace distca {

/// Error(kConfig) with what was missing, in a build without NCCL.
void check_nccl_built();

/// As make_gloo_group; messages lie on `cuda_device`. NCCL matches the messages of a pair by their
/// order within an exchange, not by tag: both sides list them in the same order.
std::unique_ptr<Communicator> make_nccl_group(const Rendezvous& rendezvous,
                                              const CommOptions& options, int cuda_device);

}  // namespace distca
