#pragma once
// device_clock() tells when a CUDA device does what the executor's thread gives it. One thread uses
// a clock.

#include <memory>

#include "distca/runtime/executor.h"

namespace distca {

/// Makes a clock for one play(). It sets its marks on the current stream of the calling thread.
/// Returns null for device -1, which is the CPU.
std::unique_ptr<OpClock> device_clock(int cuda_device);

}  // namespace distca
