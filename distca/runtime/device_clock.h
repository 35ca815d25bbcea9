#pragma once
// When a CUDA device does what the executor's thread gives it. Thread rule: one thread.

#include <memory>

#include "distca/runtime/executor.h"

namespace distca {

/// Marks on the current stream of the calling thread. Null for device -1, a CPU. For one play().
std::unique_ptr<OpClock> device_clock(int cuda_device);

}  // namespace distca
