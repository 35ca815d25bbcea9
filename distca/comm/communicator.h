#pragma once
// Tagged point-to-point between the ranks of one group: the only thing a backend has to provide.
// Exchange, ordered sums, gather and barrier are built on it, so ranks as threads and as
// processes give the same bits.
//
// Thread rule: one communicator per rank; it and the groups split from it are used by one thread
// at a time.
// Waits: every wait has the timeout of the run; when it passes or a peer's connection breaks,
// Error(kComm) names the step, the operation, the rank awaited and what the rank that holds the
// others up was last seen doing (DESIGN rule 5). Errors number ranks as the whole run does.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace distca {

/// How long a group waits before it gives up.
struct CommOptions {
  double timeout_s = 60;           // seconds one wait may last
  double grace_s = 5;              // seconds live ranks have to end after one was lost
  double startup_timeout_s = 300;  // seconds until all ranks have met: programs load at their pace
};

/// One message of an exchange. The memory is the caller's and must live until the exchange was
/// waited for.
struct Message {
  int peer = 0;
  uint32_t tag = 0;  // sender and receiver agree; messages of one pair and tag arrive in order
  std::byte* data = nullptr;
  int64_t bytes = 0;  // > 0
};

/// Messages under way. Destroying it without wait() waits quietly. On CUDA both waits may return
/// earlier: then what the calling thread gives its current stream next comes behind the messages.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  /// Returns when all receives have landed; sends may still be under way.
  virtual void wait_received() = 0;
  /// Returns when all sends may be reused and all receives have landed.
  virtual void wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  /// This rank's number in this group, 0 .. size() - 1.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// -1: messages lie in host memory; else the CUDA device index they lie on.
  virtual int cuda_device() const { return -1; }

  /// Issues all messages at once. `operation` names them in errors, e.g. "forward layer 3
  /// dispatch". A rank without messages need not call it.
  virtual std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                                    std::span<const Message> receives,
                                                    std::string_view operation) = 0;

  /// Some ranks of this group, in any order, as a group of their own: its rank i is ranks[i] here.
  /// This rank is one of them, and none is there twice (CHECK). The members call it, nobody else,
  /// and nothing is sent. Messages of different groups between the same two ranks are kept apart by
  /// the number of the group among those that the two share: so both split those in the same order,
  /// at most kMostGroups - 1 of them (tags.h) in a run. The new group borrows this one.
  virtual std::unique_ptr<Communicator> split(std::span<const int> ranks);

  /// What this rank is at, shown by its heartbeat to whoever waits for it.
  virtual void set_step(int64_t step) = 0;

 private:
  std::vector<uint32_t> groups_with_;  // [size()] groups split so far that the rank is in, too
};

}  // namespace distca
