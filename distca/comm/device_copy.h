#pragma once
// A thread group whose messages lie on one CUDA device.

#include "distca/comm/thread_group.h"

namespace distca {

/// Copies on the current stream of the calling thread, and waits for it.
ThreadDevice cuda_thread_device(int cuda_device);

}  // namespace distca
