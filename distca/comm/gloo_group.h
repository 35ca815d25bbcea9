#pragma once
// Ranks as processes that talk over TCP through Gloo, in host memory. GLOO_SOCKET_IFNAME chooses
// the network interface.
//
// Deadlines are ours (docs/comm.md): Gloo's own timeout is long, a watchdog ends the wait, and
// heartbeats in the store say who is to blame.

#include <memory>

#include "distca/comm/communicator.h"
#include "distca/comm/launch/rendezvous.h"

namespace distca {

/// Meets the other ranks; all of them call it. Throws Error(kComm) naming ranks that do not come
/// within the timeout. Destroy it on every rank when done.
std::unique_ptr<Communicator> make_gloo_group(const Rendezvous& rendezvous,
                                              const CommOptions& options);

}  // namespace distca
