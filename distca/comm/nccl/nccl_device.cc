#include "distca/comm/nccl/nccl_device.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstdlib>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/device_stream.h"

namespace distca {
namespace {

/// The number that the driver gives a device, the same for all who see it under any name; empty if
/// it does not say. Asked through the driver's C interface, which PyTorch has loaded.
std::string device_uuid(int cuda_device) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return "";
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  // The second version tells parts of a device (MIG) apart.
  void* const newer = dlsym(driver, "cuDeviceGetUuid_v2");
  const auto get_uuid = reinterpret_cast<int (*)(unsigned char*, int)>(
      newer ? newer : dlsym(driver, "cuDeviceGetUuid"));
  int device = 0;
  unsigned char bytes[16] = {};
  if (!get || !get_uuid || get(&device, cuda_device) != 0 || get_uuid(bytes, device) != 0)
    return "";
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

NcclDevice cuda_nccl_device(int cuda_device) {
  const at::Device device = aten_device(cuda_device);
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  const c10::Stream stream = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  return {
      .cuda_device = cuda_device,
      .identity = device_uuid(cuda_device),
      .stream = stream.native_handle(),
      .make_current = [device] { c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device); },
      .allocate =
          [device](int64_t bytes) {
            const at::Tensor memory =
                at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
            auto* const data = static_cast<std::byte*>(memory.data_ptr());
            return std::shared_ptr<std::byte>(data, [memory](std::byte*) {});
          },
      .mark = [device] { return end_of(current_stream(device)); },
      .communicate_behind = [stream](const DeviceMark& mark) { distca::follow(stream, mark); },
      .mark_communication = [stream] { return end_of(stream); },
      .has_passed = [](const DeviceMark& mark) { return distca::has_passed(mark); },
      .follow =
          [device](const DeviceMark& mark, double) {
            distca::follow(current_stream(device), mark);
            return true;
          },
  };
}

NcclDevice host_nccl_device(const NcclLibrary& nccl) {
  DISTCA_CHECK(nccl.host.has_value(), "{} has no host streams", nccl.path);
  const HostStreams host = *nccl.host;
  void* stream = nullptr;
  DISTCA_CHECK_EQ(host.create(&stream), 0);
  const auto wait = [host](const DeviceMark& mark, double seconds) {
    return !mark || host.wait(mark.get(), static_cast<int64_t>(seconds * 1e6)) == 1;
  };
  return {
      .stream = stream,
      .owner = std::shared_ptr<void>(stream, host.destroy),
      .allocate =
          [](int64_t bytes) {
            return std::shared_ptr<std::byte>(
                static_cast<std::byte*>(std::calloc(static_cast<size_t>(bytes), 1)), std::free);
          },
      .mark = [] { return DeviceMark(); },
      .communicate_behind = [](const DeviceMark&) {},
      .mark_communication =
          [host, stream] {
            void* mark = nullptr;
            host.mark(stream, &mark);
            return DeviceMark(mark, host.free_mark);
          },
      .has_passed = [wait](const DeviceMark& mark) { return wait(mark, 0); },
      .follow = wait,
  };
}

}  // namespace distca
