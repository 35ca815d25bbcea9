#pragma once
// For tests: the same body on every backend, all ranks in this process.

#include <functional>
#include <iosfwd>
#include <string>

#include "distca/comm/communicator.h"
#include "distca/comm/launch/rendezvous.h"
#include "distca/comm/nccl/nccl_library.h"

namespace distca {

enum class Backend { kThreads, kGloo, kNccl };  // kNccl: over the stand-in, in host memory

std::string to_string(Backend backend);
void PrintTo(Backend backend, std::ostream* out);  // GoogleTest looks for this name

/// No wait of a test is cut short because the machine has other work.
inline constexpr CommOptions kPatient{.timeout_s = 300, .grace_s = 1};

/// Seconds of a timeout that a test waits for: at least these, and a hundred times the longest time
/// that a thread of this process waited for its turn while it was measured, here and now. So on a
/// machine that is busy or slow no rank that lives is taken for lost: heartbeats come ten times
/// within a timeout, and three that are missed say so.
double short_timeout_s(double at_least_s);

/// A rank of a group whose store listens on `port` of the loopback interface.
Rendezvous at_port(uint16_t port, int rank, int size);

/// Runs `body(port, rank)` on `size` threads while a store listens on `port` of the loopback
/// interface; rethrows the first failure.
void run_with_store(int size, const std::function<void(uint16_t port, int rank)>& body);

/// The library that tests load in NCCL's place.
const NcclLibrary& nccl_standin();

/// Runs `body` on `size` threads with a communicator each; rethrows the first failure.
void run_on(Backend backend, int size, const CommOptions& options,
            const std::function<void(Communicator&)>& body);

}  // namespace distca
