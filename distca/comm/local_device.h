#pragma once
// The CUDA device that a rank takes, of those that its process sees: the one of its number among
// the ranks of its machine, or the only one. Thread rule: local_device() is pure;
// use_local_device() sets the calling thread's device.

#include <string>

namespace distca {

/// The facts that decide which device a rank takes.
struct LocalDevices {
  int visible = 0;         // devices that this process sees
  std::string names = {};  // CUDA_VISIBLE_DEVICES, for messages; empty if unset
  bool may_share = false;  // DISTCA_NCCL_SAME_DEVICE=1: several ranks may take one device
};
LocalDevices local_devices();

/// The device, 0 .. visible - 1. Throws Error(kConfig) where none is visible, or several and fewer
/// than ranks.
int local_device(int local_rank, const LocalDevices& devices);

/// Throws Error(kConfig) if `ranks`, which this process is to start and which will see what it
/// sees, cannot have a device each.
void check_local_devices(int ranks, const LocalDevices& devices);

/// local_device() of what this process sees, made the current device: what names no device would
/// otherwise gather on device 0.
int use_local_device(int local_rank, const LocalDevices& devices);

}  // namespace distca
