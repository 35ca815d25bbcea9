#pragma once
// Tagged point-to-point between the ranks of one group: the only thing a backend has to provide.
// Exchange, ordered sums, gather and barrier are built on it, so ranks as threads and as
// processes give the same bits.
//
// Thread rule: one communicator per rank, used by one thread at a time.
// Waits: every wait has the group's timeout; when it passes or a peer's connection breaks,
// Error(kComm) names the step, the operation, the rank awaited and what that rank was last seen
// doing (DESIGN rule 5).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

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

/// Whose exchange it is. To find who is behind, a group compares how many each rank has posted.
enum class TakePart {
  kAllRanks,   // every rank posts it, if only with neither sends nor receives: counted
  kSomeRanks,  // others have no counterpart of it, as of a sum over some ranks: not counted
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// -1: messages lie in host memory; else the CUDA device index they lie on.
  virtual int cuda_device() const { return -1; }

  /// What a backend provides: posts everything at once. `operation` names it in
  /// errors, e.g. "forward layer 3 enter".
  virtual std::unique_ptr<PendingExchange> post(std::span<const Message> sends,
                                                std::span<const Message> receives,
                                                std::string_view operation, TakePart who) = 0;
  /// An exchange of all ranks.
  std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                            std::span<const Message> receives,
                                            std::string_view operation) {
    return post(sends, receives, operation, TakePart::kAllRanks);
  }
  /// One that only some ranks take part in.
  std::unique_ptr<PendingExchange> exchange_among_some(std::span<const Message> sends,
                                                       std::span<const Message> receives,
                                                       std::string_view operation) {
    return post(sends, receives, operation, TakePart::kSomeRanks);
  }
  /// What this rank is at, shown on the board to whoever waits for it.
  virtual void set_step(int64_t step) = 0;
};

}  // namespace distca
