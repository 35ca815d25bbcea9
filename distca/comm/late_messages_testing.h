#pragma once
// For tests: devices of ranks that are threads on which messages, and the work around them, are
// late at random. So what uses a message's memory without having waited for it computes wrong bits.
// Any thread may use a device; its maker lives until all ranks have ended.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "distca/comm/thread_group.h"

namespace distca::testing {

/// Host memory. Where chance says so, the memory that receives a message is filled with NaN when
/// both sides have issued it. Its bytes are taken when one of the two waits for it, and arrive when
/// the receiver does. `late_share` is the share of messages that are late so. A rank waits in the
/// thread in which it issues.
ThreadDevice late_messages(uint64_t seed, double late_share = 0.5);

/// The streams of a device that works through what threads give it later.
struct Streams {
  /// Gives the calling thread's current stream work of so many microseconds.
  std::function<void(int64_t microseconds)> spin;
  /// Gives it the work of filling memory with 0xff, which is NaN in every format.
  std::function<void(std::byte* to, int64_t bytes)> fill;
  /// Calls `body` while a stream that no rank uses is the calling thread's current one.
  std::function<void(const std::function<void()>& body)> aside;
};

/// `device`, with work of up to `most_us` microseconds, at random, before marks, before copies and
/// before what follows a mark. Memory is filled before a copy to it: who reads early reads NaN.
ThreadDevice with_random_delays(const ThreadDevice& device, const Streams& streams, uint64_t seed,
                                int64_t most_us);

/// The streams of a CUDA device. Their spins are kernels of PyTorch's. They must be made before the
/// ranks begin: streams of a pool go in turn, so those aside are not the ranks'.
Streams cuda_streams(int cuda_device);

}  // namespace distca::testing
