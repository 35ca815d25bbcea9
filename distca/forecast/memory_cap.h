#pragma once
// How much activations and kept keys of a rank may take where the user has set no
// plan.max_memory_gib and ranks compute on CUDA devices: what a device has, less everything else.
// Plans depend on it, so all ranks take the same number, the smallest of all, and the checkpoint
// records it. It only decides whether exchange.keys = auto keeps keys; no batch is refused for it.
//
//     const int64_t own = device_cap(config, plans, num_workers, local, visible_devices());
//     const Config capped = with_device_cap(config, comm, own);  // train/check_run.h
//
// Any thread may call the functions.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/base/device_facts.h"
#include "distca/config/config.h"
#include "distca/forecast/memory.h"
#include "distca/forecast/plan_request.h"

namespace distca {

/// The memory of a device that is left free: bytes for what no part counts (the CUDA context,
/// kernels and workspaces of libraries, NCCL's buffers), and a percentage for what the allocator
/// cannot use and for later batches, whose exchange buffers may be larger.
inline constexpr int64_t kDeviceReserve = int64_t{3} << 30;
inline constexpr int64_t kDeviceReservePercent = 5;
/// Caps are multiples of it, so that devices that differ by a few pages have the same.
inline constexpr int64_t kDeviceCapUnit = int64_t{64} << 20;

/// Returns true if plans of this configuration get a cap from the devices.
bool takes_device_cap(const Config& config);

/// The cap of each local rank in bytes, at least kDeviceCapUnit: what the reserve,
/// standing_memory(), exchange buffers without kept keys, and the largest sum of logits and phases
/// (the operators' temporaries among them) leave of a rank's share of its device under the plans of
/// the first batch, on the local rank where that is least. 0 means no cap, because the
/// configuration takes none or `devices` is empty.
int64_t device_cap(const Config& config, const BatchPlans& plans, int num_workers, LocalRanks local,
                   const std::vector<DeviceFacts>& devices);

/// Returns words such as "61.25 GiB".
std::string describe_device_cap(int64_t bytes);

}  // namespace distca
