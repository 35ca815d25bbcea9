#pragma once
// A thread group whose messages lie on one CUDA device.

#include "distca/comm/thread_group.h"

namespace distca {

/// Each rank's thread gets a stream of its own, and does autograd's backward itself. Copies go
/// through communication streams: behind the current streams of both sides' threads when they
/// issued, and before what the current stream of a thread is given once it has waited. No host
/// thread waits for the device.
ThreadDevice cuda_thread_device(int cuda_device);

}  // namespace distca
