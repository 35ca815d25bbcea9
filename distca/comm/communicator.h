#pragma once
// A Communicator sends tagged messages between the ranks of one group. It is the only thing that a
// backend has to provide: exchanges, ordered sums, gather and barrier are built on it, so ranks as
// threads and ranks as processes give the same bits.
//
// Threads. Each rank has one communicator of its own. The communicator and the groups that are
// split from it may be used by one thread at a time.
//
// Errors. Every wait has the timeout of the run. When the timeout passes, or the connection to a
// peer breaks, Error(kComm) names the step, the operation, the rank that was awaited, and what the
// rank that holds up the others was last seen doing (DESIGN rule 5). Errors number the ranks as
// the whole run does.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/comm_options.h"

namespace distca {

/// One message of an exchange. The memory belongs to the caller. It must live, and must not change,
/// until the exchange has been waited for.
struct Message {
  /// The rank in this group that the message goes to, or comes from.
  int peer = 0;
  /// Sender and receiver use the same tag. Messages of one pair and one tag arrive in order.
  uint32_t tag = 0;
  std::byte* data = nullptr;
  /// Above 0.
  int64_t bytes = 0;
};

/// An exchange whose messages are under way. An object that is destroyed without wait() waits and
/// throws nothing.
///
/// On CUDA, both waits may return before the messages have landed. What the calling thread gives
/// its current stream afterwards then runs behind the messages.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  /// Returns when everything has been received. Sends may still be under way.
  virtual void wait_received() = 0;
  /// Returns when everything has been received and the memory of all sends may be reused.
  virtual void wait() = 0;

 protected:
  /// For the destructor of a final class: waits, and throws nothing.
  void wait_at_last();

 private:
  const int exceptions_ = std::uncaught_exceptions();
};

/// One rank's view of a group of ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;
  /// This rank's number in this group, 0 .. size() - 1.
  virtual int rank() const = 0;
  /// The number of ranks in this group.
  virtual int size() const = 0;
  /// The index of the CUDA device on which messages lie, or -1 if they lie in host memory.
  virtual int cuda_device() const { return -1; }
  /// Returns true if an exchange ends only after those that this rank issued before it, of
  /// whichever group (nccl_group.h). Ranks then issue the exchanges that they have with each other
  /// in one order, and a receive is issued no sooner than what its sender waits for.
  virtual bool ends_in_order() const { return false; }

  /// Issues all messages at once and returns while they are under way. `operation` names them in
  /// errors: "forward layer 3 dispatch". A rank that has no messages need not call it.
  virtual std::unique_ptr<PendingExchange> exchange(std::span<const Message> sends,
                                                    std::span<const Message> receives,
                                                    std::string_view operation) = 0;

  /// Makes a group of some ranks of this group, in any order. Rank i of the new group is ranks[i]
  /// of this one. This rank must be one of them, and no rank may be listed twice (CHECK). Only the
  /// members call it, and nothing is sent. The new group borrows this one.
  ///
  /// Messages of different groups between the same two ranks are kept apart by a number that counts
  /// the groups which the two share. So two ranks must split their common groups in the same order,
  /// and they can share at most kMostGroups - 1 groups (tags.h) in a run.
  virtual std::unique_ptr<Communicator> split(std::span<const int> ranks);
  /// The group of the ranks 0 .. count - 1.
  std::unique_ptr<Communicator> split_first(int count);

  /// Sets which step this rank is at. Its heartbeat shows that to the ranks that wait for it.
  virtual void set_step(int64_t step) = 0;

  /// Throws the Error(kComm) of the group, if the group has failed. Where waits do not hold the
  /// host, what came from others and was read from the device just before is of no use then.
  virtual void throw_if_failed() const {}

 private:
  // [size()] How many groups that contain this rank and that one have been split so far.
  std::vector<uint32_t> groups_with_;
};

}  // namespace distca
