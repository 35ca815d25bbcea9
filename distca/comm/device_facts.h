#pragma once
// How much memory and how many multiprocessors the CUDA devices have that this process sees. The
// driver is asked, by its C interface, which is loaded at run time: it answers without a context on
// a device, so also the process that only starts ranks can ask.
//
//     const std::vector<DeviceFacts> devices = visible_devices();  // empty: not known here
//
// Thread rule: any thread may call the functions.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "distca/base/device_facts.h"

namespace distca {

/// Functions of libcuda.so.1. Each returns 0, or an error. Devices are counted from 0 among those
/// that CUDA_VISIBLE_DEVICES shows.
struct CudaDriver {
  int (*init)(unsigned flags) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*total_memory)(size_t* bytes, int device) = nullptr;
  int (*attribute)(int* value, int attribute, int device) = nullptr;
};
inline constexpr int kMultiprocessors = 16;  // a value of CUdevice_attribute

/// [device] Empty if the driver refuses an answer.
std::vector<DeviceFacts> visible_devices(const CudaDriver& driver);
/// By this machine's driver; empty without one.
std::vector<DeviceFacts> visible_devices();

}  // namespace distca
