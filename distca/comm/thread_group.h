#pragma once
// run_ranks() runs ranks as threads of one process. Tests use it, and so do several ranks that
// share one device. A message is copied once, straight from the sender's memory to the receiver's,
// by the rank that issues its side second.
//
// Errors. Error(kComm) names the rank if a wait lasts longer than the timeout, if a wait needs a
// rank whose thread has failed, or if a copy fails. All other waits of the group then end with the
// same line. Two messages of one pair and tag that differ in size are a CHECK.

#include <functional>
#include <memory>

#include "distca/comm/communicator.h"

namespace distca {

/// A point in the work that a device was given. A null mark has already been passed.
using DeviceMark = std::shared_ptr<void>;

/// The device on which the messages of a thread group lie, and how to copy there. The default is
/// host memory: all functions are null, and a message is copied at once. device_stream.h makes the
/// one for CUDA.
///
/// A device such as a GPU works through what threads give it later, in streams of its own. There
/// an exchange waits on the device and not on the host: the copy is given to the device as soon as
/// both sides have issued it. Any thread may call these functions.
struct ThreadDevice {
  int cuda_device = -1;
  /// Marks the end of everything that the calling thread has given the device so far. It is called
  /// when messages are issued.
  std::function<DeviceMark()> mark;
  /// Copies behind the marks of both sides, now or later on the device. Returns a mark for the end
  /// of the copy.
  std::function<DeviceMark(std::byte* to, const std::byte* from, int64_t bytes,
                           const DeviceMark& sender, const DeviceMark& receiver)>
      copy;
  /// Makes what the calling thread gives the device from now on run behind the mark.
  std::function<void(const DeviceMark&)> follow;
  /// Called by the thread of each rank before its body; what it returns lives as long as the body.
  /// It gives the thread a stream of its own. Null: nothing is to be done.
  std::function<std::shared_ptr<void>()> begin_rank = {};
};

/// Runs `body` on `size` threads, one for each rank, and rethrows the failure that came first.
///
/// A rank that fails ends the waits of all others. These then have options.grace_s seconds to end.
/// If one does not, because it hangs outside the waits of this group, the process ends with the
/// first failure as its last line and its exit code. Throws Error(kIo) if the system refuses a
/// thread.
void run_ranks(int size, const CommOptions& options, const std::function<void(Communicator&)>& body,
               const ThreadDevice& device = {});

}  // namespace distca
