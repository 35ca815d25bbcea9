#pragma once
// Ranks as threads of one process: for tests, and for several ranks on a single device. A message
// is copied once, straight from the sender's memory to the receiver's, by whoever issues second.
//
// Errors: a wait beyond the timeout, or for a rank whose thread failed, and a copy that fails are
// Error(kComm) naming the rank; all other waits of the group then end with the same line. Messages
// of one pair and tag that differ in size are a CHECK.

#include <functional>
#include <memory>

#include "distca/comm/communicator.h"

namespace distca {

/// A point in what was given to a device to do. Null: it is behind us.
using DeviceMark = std::shared_ptr<void>;

/// Where the messages of a thread group lie. On a device that works through what threads give it
/// later and in streams of its own, an exchange waits there, not on the host: it is given to the
/// device as soon as both sides have issued. Any thread calls these; all null: host memory, at
/// once. See device_copy.h for CUDA.
struct ThreadDevice {
  int cuda_device = -1;
  /// All that the calling thread has given the device so far: taken when messages are issued.
  std::function<DeviceMark()> mark;
  /// Copies, now or on the device, behind both sides' marks; returns the end of the copy.
  std::function<DeviceMark(std::byte* to, const std::byte* from, int64_t bytes,
                           const DeviceMark& sender, const DeviceMark& receiver)>
      copy;
  /// What the calling thread gives the device from now on comes behind the mark.
  std::function<void(const DeviceMark&)> follow;
};

/// Runs `body` on `size` threads, one rank each, and rethrows the failure that came first in time.
/// A rank that fails ends the waits of all others, which then have options.grace_s to end: if one
/// does not, as it hangs outside our waits, the process ends with that failure as its last line and
/// exit code. Error(kIo) if the system refuses a thread.
void run_ranks(int size, const CommOptions& options, const std::function<void(Communicator&)>& body,
               const ThreadDevice& device = {});

}  // namespace distca
