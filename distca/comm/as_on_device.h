#pragma once
// The choice between two ways to treat tensors, a device's and a CPU's. On a device, a launch costs
// as much as many rows, so runs of rows move together, and nothing may be read; on a CPU a copy
// costs its bytes.
//
//     const AsOnDevice all;             // a test on a CPU: what follows takes the device's way
//     attention.forward(...);
//
// Thread rule: of the calling thread.

namespace distca {

class AsOnDevice {
 public:
  AsOnDevice() { ++living; }
  ~AsOnDevice() { --living; }
  AsOnDevice(const AsOnDevice&) = delete;
  AsOnDevice& operator=(const AsOnDevice&) = delete;

  static inline thread_local int living = 0;
};

/// Returns true if the device's way is to be taken for tensors on `cuda_device`. -1 is the CPU, for
/// which it is taken only while an AsOnDevice of this thread lives.
inline bool as_on_device(int cuda_device) { return cuda_device >= 0 || AsOnDevice::living > 0; }

}  // namespace distca
