#pragma once
// Ranks that talk through NCCL, each with a CUDA device of its own, loaded at run time
// (nccl_library.h). With a library that has host streams, messages lie in host memory.
//
// NCCL knows no tags: of two ranks, the n-th message that one sends is what the other receives
// n-th. So beyond what a Communicator asks for, all ranks issue the exchanges that they have with
// each other in the same order, whichever groups they belong to, and an exchange ends when all its
// messages have been sent and received (docs/comm.md). Programs are checked for that
// (program/validate/validate.h). Within an exchange, messages of a pair are matched by their tags.
//
// Errors: the calls that issue and wait throw Error(kComm) as other groups do. On CUDA they do not
// wait for the device; what is read from it after a failure is of no use, and
// Communicator::throw_if_failed() says so.

#include <functional>
#include <memory>

#include "distca/comm/communicator.h"
#include "distca/comm/launch/rendezvous.h"
#include "distca/comm/nccl/nccl_device.h"
#include "distca/comm/nccl/nccl_library.h"

namespace c10d {
class Store;
}

namespace distca {

/// Meets the other ranks and connects every pair; all of them call it. Throws Error(kComm), which
/// names ranks that do not come within the start-up timeout, and Error(kConfig) if two ranks have
/// the same device. Destroy it on every rank when done: a rank then waits until all others are done
/// as well, because they may still read what it has sent; at most as long as they may take to meet.
std::unique_ptr<Communicator> make_nccl_group(const Rendezvous& rendezvous,
                                              const CommOptions& options, const NcclLibrary& nccl,
                                              const NcclDevice& device);
/// Makes such a group of the ranks 0 .. size - 1 of a PyTorch program, which meet in a store that
/// it has made. As with make_c10d_group(), an intrusive pointer owns the store, and it serves one
/// communicator; `is_over` also means what it means there.
std::unique_ptr<Communicator> make_nccl_group(c10d::Store& store, int rank, int size,
                                              const CommOptions& options, const NcclLibrary& nccl,
                                              const NcclDevice& device,
                                              std::function<bool()> is_over = nullptr);

}  // namespace distca
