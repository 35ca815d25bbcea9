#pragma once
// A thread group whose messages lie on one CUDA device.

#include <memory>

#include "distca/comm/thread_group.h"

namespace distca {

/// While what it returns lives, the calling thread gives the device its work on a stream of its
/// own. With one stream for all ranks that are threads, each would wait for what the others do, and
/// a wait that is missing would not show. To be destroyed by the same thread.
std::shared_ptr<void> begin_device_rank(int cuda_device);

/// Each rank's thread begins as begin_device_rank() says. Copies go
/// through communication streams: behind the current streams of both sides' threads when they
/// issued, and before what the current stream of a thread is given once it has waited. No host
/// thread waits for the device.
ThreadDevice cuda_thread_device(int cuda_device);

}  // namespace distca
