#pragma once
// Measures how many times as long the backward of core attention takes with deterministic operators
// as without, on a CUDA device: a run says in its first lines what train.deterministic costs it.
//
//     const double times = deterministic_price(probe, [&] { wait_for(device); return now(); });
//
// Thread rule: one thread of the process. No other may compute with PyTorch meanwhile, because a
// setting of the process is switched, and put back at the end.

#include <cstdint>
#include <functional>

#include "distca/kernels/attention.h"

namespace distca {

/// The work that is measured: the backward of one causal document, whose tokens have these heads.
struct DeterministicProbe {
  kernels::Shape shape;
  ScalarType type = ScalarType::kBFloat16;
  int64_t tokens = 0;
  int cuda_device = 0;  // -1 is the CPU, where a test has stand-ins for the operators
};

/// The best of three times with deterministic operators over the best of three without, which take
/// turns after one of each to warm up. `seconds` waits for the device and reads a clock.
double deterministic_price(const DeterministicProbe& probe, const std::function<double()>& seconds);

}  // namespace distca
