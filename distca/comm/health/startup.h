#pragma once
// Connecting all ranks at the start by a library that cannot be interrupted: in a thread of its
// own, which whoever gives up leaves behind.

#include <functional>
#include <string>

#include "distca/comm/health/heartbeat.h"

namespace distca {

/// Calls `connect` in a thread of its own, with the seconds that its library is given for it: later
/// than our deadline, which says who was awaited. Returns when it has returned on every rank. It
/// keeps what it needs alive, because it may still run when this throws:
///   Error(kComm)  which names ranks, if the start-up deadline passes, or somebody is known to be
///                 lost before; or which says why `connect` threw, behind what `cannot` returns
///   Error         as `connect` threw it
void connect_by_deadline(const Rendezvous& rendezvous, Heartbeat& heartbeat,
                         const std::function<void(double timeout_s)>& connect,
                         const std::function<std::string()>& cannot);

}  // namespace distca
