#pragma once
// Which CUDA device a rank takes: the one of its number among the ranks of its machine, or the only
// one that it sees. Thread rule: local_device is pure; use_local_device sets the calling thread's.

#include <string>

namespace distca {

/// The device, 0 .. visible - 1. `names`: CUDA_VISIBLE_DEVICES, for the message; empty if unset.
/// Error(kConfig) where no device is visible, or several and not as many as ranks.
int local_device(int local_rank, int visible, const std::string& names);

/// Error(kConfig) if this process sees fewer devices than the `ranks` that it is to start.
void check_local_devices(int ranks);

/// local_device of what this process sees, made the current device: contexts and allocations that
/// name none would otherwise gather on device 0.
int use_local_device(int local_rank);

}  // namespace distca
