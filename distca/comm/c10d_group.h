#pragma once
// A Communicator over a c10d process group: Gloo, or another backend with send, recv and an abort
// of their waits. Messages lie in host memory.
//
// Deadlines are kept by DistCA and not by the backend (docs/comm.md). The backend's own timeout
// would close the connections of live ranks. So each wait asks the backend for a longer timeout, a
// watchdog thread ends the wait in time, and heartbeats in the store say which rank is to blame.

#include <functional>
#include <memory>

#include "distca/comm/communicator.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace distca {

class GlooLoop;
struct Health;

/// Makes a communicator over a process group and a store that a PyTorch program has made. All ranks
/// of the group call it, and each destroys its communicator when it is done.
///
/// `group` and `store` must be owned by intrusive pointers; the communicator keeps both as long as
/// it needs them. While the communicator exists, nobody else may send point-to-point messages
/// through the group. The communicator's keys in the store begin with "distca/", so one store
/// serves one communicator. Give another communicator a c10d::PrefixStore of its own; otherwise
/// Error(kConfig) is thrown. The last rank that ends deletes the keys.
///
/// `is_over`, if given, is asked by a thread of ours before each heartbeat: whether the program has
/// destroyed the group. The heartbeats then end without a word, for the store may end, too.
///
/// Throws Error(kComm), which names the ranks that have not come within the start-up timeout.
std::unique_ptr<Communicator> make_c10d_group(c10d::Backend& group, c10d::Store& store,
                                              const CommOptions& options,
                                              std::function<bool()> is_over = nullptr);

/// Makes a communicator over a group whose ranks have already met through `health`. `loop` is the
/// thread of Gloo's that is held back while this rank issues messages. A GlooLoop that was never
/// started holds back nothing.
std::unique_ptr<Communicator> make_c10d_group(c10d::Backend& group, std::unique_ptr<Health> health,
                                              const GlooLoop& loop);

}  // namespace distca
