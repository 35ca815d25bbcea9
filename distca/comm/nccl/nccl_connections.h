#pragma once
// The start and the end of a group that talks through NCCL: ranks meet in the run's store, connect
// all pairs, and leave together.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "distca/comm/communicator.h"
#include "distca/comm/health/heartbeat.h"
#include "distca/comm/launch/rendezvous.h"
#include "distca/comm/nccl/nccl_device.h"
#include "distca/comm/nccl/nccl_library.h"

namespace c10d {
class Store;
}

namespace distca {

/// Makes a connection of its own to the store in which the ranks meet, whose calls wait so many
/// seconds.
using OpenStore = std::function<std::shared_ptr<c10d::Store>(double timeout_s)>;
/// To the store that the rendezvous names.
OpenStore store_of(const Rendezvous& rendezvous);
/// To a store made elsewhere, which an intrusive pointer owns. Its keys get the prefix.
OpenStore store_like(c10d::Store& made, const std::string& prefix);

/// A rank's connections with all others. Thread rule: abort() from any thread, at any time; the
/// rest by one thread at a time.
class NcclConnections {
 public:
  /// Connects every pair, and holds the caller until all ranks do so. Messages are moved in the
  /// communication stream of `device`.
  NcclConnections(const NcclLibrary& nccl, const NcclDevice& device, const Rendezvous& rendezvous,
                  c10d::Store& store);

  /// Gives the communication stream all messages as one group. In each direction, messages of a
  /// pair go in the order of their tags. Throws std::runtime_error with what NCCL says.
  void issue(std::span<const Message> sends, std::span<const Message> receives);
  /// Returns the error that NCCL reports outside of calls, in one line; nothing if all is well.
  std::optional<std::string> error() const;
  /// Ends what is under way, and every call that waits. Does nothing after the first time.
  void abort();
  /// Gives everything back, after all ranks have received what this one sent.
  void finish();

  const NcclDevice& device() const { return device_; }

 private:
  const NcclLibrary nccl_;
  const NcclDevice device_;
  std::timed_mutex in_use_;
  std::atomic<bool> gone_ = false;  // given back or aborted
  NcclComm comm_ = nullptr;
};

/// Connects every pair by the start-up deadline of `heartbeat`. Throws as make_nccl_group().
std::shared_ptr<NcclConnections> connect_nccl(const NcclLibrary& nccl, const NcclDevice& device,
                                              const Rendezvous& rendezvous, const OpenStore& open,
                                              Heartbeat& heartbeat);

/// Gives the connections back when all ranks have come to their end. `is_well` says whether this
/// rank is one that has done all its work; one that failed waits for nobody. Returns after at most
/// `patience_s`, and a little longer where NCCL does not return.
void leave_nccl(std::shared_ptr<NcclConnections> connections, const Rendezvous& rendezvous,
                const OpenStore& open, const Heartbeat& heartbeat, bool is_well, double patience_s);

}  // namespace distca
