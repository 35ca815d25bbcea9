#include "distca/comm/device_facts.h"

#include <dlfcn.h>

namespace distca {

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
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // stays, as PyTorch uses it
  const auto find = [&]<typename Function>(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    return function != nullptr;
  };
  CudaDriver driver;
  if (!library || !find("cuInit", driver.init) || !find("cuDeviceGetCount", driver.device_count) ||
      !find("cuDeviceGet", driver.device_get) ||
      !find("cuDeviceTotalMem_v2", driver.total_memory) ||
      !find("cuDeviceGetAttribute", driver.attribute))
    return {};
  return visible_devices(driver);
}

}  // namespace distca
