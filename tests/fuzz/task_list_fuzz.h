#pragma once
// A task list made of any bytes, over heap buffers without a spare element. Thread rule: one call
// at a time.

#include <cstdint>
#include <span>

namespace distca::kernels::fuzz {

struct Outcome {
  bool forward = false;   // accepted, run on the CPU kernel
  bool backward = false;  // accepted, run on the CPU kernel
  bool compared = false;  // the results were close to the reference's, as they must be
};

/// Throws nothing but what should not happen: that the checks refuse the list is an outcome.
Outcome run_task_list(std::span<const uint8_t> bytes);

}  // namespace distca::kernels::fuzz
