#include "distca/comm/local_device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "distca/base/env.h"
#include "distca/base/error.h"

namespace distca {
namespace {

int visible_devices() {
  return at::hasCUDA() ? c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() : 0;
}

std::string visible_names() { return env_string("CUDA_VISIBLE_DEVICES").value_or(""); }

}  // namespace

int local_device(int local_rank, int visible, const std::string& names) {
  const std::string seen = names.empty() ? std::string("CUDA_VISIBLE_DEVICES is not set")
                                         : "CUDA_VISIBLE_DEVICES=" + names;
  if (visible == 0) {
    throw Error(ErrorKind::kConfig, "rank {} of this machine sees no CUDA device ({})", local_rank,
                seen);
  }
  // A launcher that gives each rank a device of its own shows it no other.
  if (visible == 1) return 0;
  if (local_rank < visible) return local_rank;
  throw Error(
      ErrorKind::kConfig,
      "rank {} of this machine, counted from 0, has no CUDA device: {} are visible ({}); start at "
      "most {} ranks on it, or give each one device of its own",
      local_rank, visible, seen, visible);
}

void check_local_devices(int ranks) {
  const int visible = visible_devices();
  if (ranks <= visible) return;
  throw Error(ErrorKind::kConfig,
              "{} ranks with comm.backend = nccl want a CUDA device each, {} {} visible; fewer "
              "--workers and servers.dedicated, or comm.backend=threads on one device",
              ranks, visible, visible == 1 ? "is" : "are");
}

int use_local_device(int local_rank) {
  const int device = local_device(local_rank, visible_devices(), visible_names());
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(
      at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return device;
}

}  // namespace distca
