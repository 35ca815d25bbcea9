#include "distca/comm/device_facts.h"

#include <dlfcn.h>

namespace distca {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

template <typename Function>
bool find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

std::vector<DeviceFacts> visible_devices(const CudaDriver& driver) {
  int count = 0;
  if (driver.init(0) != 0 || driver.device_count(&count) != 0) return {};
  std::vector<DeviceFacts> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    int device = 0, multiprocessors = 0;
    size_t bytes = 0;
    if (driver.device_get(&device, ordinal) != 0 || driver.total_memory(&bytes, device) != 0 ||
        driver.attribute(&multiprocessors, kMultiprocessors, device) != 0)
      return {};
    devices.push_back({static_cast<int64_t>(bytes), multiprocessors});
  }
  return devices;
}

std::vector<DeviceFacts> visible_devices() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // stays, as PyTorch uses it
  CudaDriver driver;
  if (!library || !find(library, "cuInit", &driver.init) ||
      !find(library, "cuDeviceGetCount", &driver.device_count) ||
      !find(library, "cuDeviceGet", &driver.device_get) ||
      !find(library, "cuDeviceTotalMem_v2", &driver.total_memory) ||
      !find(library, "cuDeviceGetAttribute", &driver.attribute))
    return {};
  return visible_devices(driver);
}

}  // namespace distca
