#pragma once
// Watches the exchanges of a rank that a device waits for and no host thread does. A thread of its
// own asks which exchange the device stands at. Another one keeps the deadline of that wait, and
// ends the group when it passes, when an error is reported, or when a rank is known to be lost. It
// never asks the device itself: a driver may hold who asks until a hanging exchange ends.
//
// Exchanges end in the order in which they were issued. So the device stands at the first one that
// has not ended, once anything at or behind it is waited for.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distca/comm/health/health.h"
#include "distca/comm/nccl/nccl_connections.h"
#include "distca/comm/thread_group.h"

namespace distca {

/// Thread rule: any thread.
class NcclWatch {
 public:
  /// An exchange under way.
  struct Exchange;

  /// Aborts the connections at most once, when failure() says why. `health` must live as long as
  /// this; an abort that blocks uses the connections longer.
  NcclWatch(int rank, const CommOptions& options, std::shared_ptr<NcclConnections> connections,
            Health& health);
  /// Gives an abort under way the grace period to end, and leaves it behind after that.
  ~NcclWatch();

  /// An exchange is about to be issued. Its messages go to `peers` and come from them. Until it has
  /// been issued, the calling thread waits: NCCL may hold it while the device is full.
  std::shared_ptr<Exchange> begin(Activity at, std::vector<int> peers);
  /// It has been issued, and ends with the mark.
  void issued(Exchange& exchange, DeviceMark end);
  /// From the mark on, the device waits for the exchange; a null mark: from now on.
  void wait_for(Exchange& exchange, DeviceMark from);

  /// Why the group has ended; nothing while it lives. It is known before the connections are
  /// aborted.
  std::optional<std::string> failure() const;
  /// Ends a group that a call has found broken, or that is of no use any more, and returns why.
  std::string end(const FailedWait& wait);

  /// Returns true if no exchange is under way.
  bool is_idle();

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with the threads, which may outlive us
};

}  // namespace distca
