#include "distca/comm/local_device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "distca/base/env.h"
#include "distca/base/error.h"

namespace distca {
namespace {

std::string seen(const LocalDevices& devices) {
  return devices.names.empty() ? std::string("CUDA_VISIBLE_DEVICES is not set, or empty")
                               : "CUDA_VISIBLE_DEVICES=" + devices.names;
}

}  // namespace

LocalDevices local_devices() {
  return {.visible = at::hasCUDA() ? c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() : 0,
          .names = env_string("CUDA_VISIBLE_DEVICES").value_or(""),
          .may_share = env_string("DISTCA_NCCL_SAME_DEVICE") == "1"};
}

int local_device(int local_rank, const LocalDevices& devices) {
  DISTCA_THROW_IF(devices.visible == 0, ErrorKind::kConfig,
                  "rank {} of this machine, counted from 0, sees no CUDA device ({})", local_rank,
                  seen(devices));
  if (local_rank < devices.visible) return local_rank;
  // A launcher that gives each rank a device of its own shows it no other.
  if (devices.visible == 1 || devices.may_share) return local_rank % devices.visible;
  throw Error(ErrorKind::kConfig,
              "rank {} of this machine, counted from 0, has no CUDA device: {} are visible ({}); "
              "start at most {} ranks on it, or show each rank one device of its own",
              local_rank, devices.visible, seen(devices), devices.visible);
}

void check_local_devices(int ranks, const LocalDevices& devices) {
  DISTCA_THROW_IF(ranks > devices.visible && !devices.may_share, ErrorKind::kConfig,
                  "comm.backend = nccl: {} ranks on this machine, and {} CUDA devices are visible "
                  "({}): NCCL takes one rank a device; start fewer ranks, or set "
                  "comm.backend=threads, where ranks share one",
                  ranks, devices.visible, seen(devices));
}

int use_local_device(int local_rank, const LocalDevices& devices) {
  const int device = local_device(local_rank, devices);
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(
      at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return device;
}

}  // namespace distca
