#pragma once
// Ranks that a c10d process group connects, for messages in host memory: Gloo, or what else has
// send, recv and an abort of their waits.
//
// Deadlines are ours (docs/comm.md): the backend's own would close the connections of live ranks,
// so each wait asks for a longer one, a watchdog ends it, and heartbeats in the store say who is to
// blame.

#include <memory>

#include "distca/comm/communicator.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace distca {

class GlooLoop;
struct Health;

/// Over a group and a store that somebody else made, as PyTorch programs have them; all its ranks
/// call it. Both must be owned by intrusive pointers, and are kept as long as they are needed.
/// Nobody else sends point-to-point messages through the group meanwhile. The keys of heartbeats
/// begin with "distca/": a store serves one communicator, another wants a c10d::PrefixStore of its
/// own (else Error(kConfig)). Throws Error(kComm) naming ranks that do not come within the start-up
/// timeout. Destroy it on every rank when done.
std::unique_ptr<Communicator> make_c10d_group(c10d::Backend& group, c10d::Store& store,
                                              const CommOptions& options);

/// Over a group whose ranks have met through `health`. `loop`: the thread of Gloo's that is
/// held back while a rank issues messages; one that was never started holds back nothing.
std::unique_ptr<Communicator> make_c10d_group(c10d::Backend& group, std::unique_ptr<Health> health,
                                              const GlooLoop& loop);

}  // namespace distca
