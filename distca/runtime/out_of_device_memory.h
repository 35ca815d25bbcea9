#pragma once
// The errors of a device that has no memory left. Any thread may call the functions.

#include <exception>
#include <stdexcept>
#include <string>

#include "distca/base/error.h"

namespace distca {

/// A device has no memory left for what an operation makes. The text says which operation, and what
/// PyTorch said.
class OutOfDeviceMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The beginning of what PyTorch's OutOfMemoryError says: how much was asked for, and what there
/// is.
std::string asked_for(const std::exception& error);

/// How a run ends whose device is full. `where`: in what a rank asked for memory.
Error device_is_full(int rank, const std::string& where);

}  // namespace distca
