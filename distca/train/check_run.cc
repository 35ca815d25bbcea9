#include "distca/train/check_run.h"

#include <ATen/Context.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "distca/base/build_info.h"
#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/comm/device_facts.h"
#include "distca/comm/nccl/nccl_library.h"
#include "distca/forecast/checked_data.h"
#include "distca/forecast/memory_cap.h"
#include "distca/forecast/memory_peak.h"
#include "distca/forecast/plan_request.h"
#include "distca/train/step_tracer.h"

namespace distca {

void set_up_process(const Config& config) {
  if (!config.on_cuda() || !config.train.deterministic) return;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Else every buffer is filled before its use: nothing reads one that nobody wrote.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

namespace {

void check_device(const Config& config) {
  if (!config.on_cuda() || at::hasCUDA()) return;
  DISTCA_THROW_IF(std::string_view(build_info::kCuda) == "none", ErrorKind::kConfig,
                  "train.device = cuda: this distca is built with PyTorch {}, which has no CUDA: "
                  "build it with one that has, on a machine with a GPU or as docs/gpu.md says",
                  build_info::kTorch);
  throw Error(ErrorKind::kConfig,
              "train.device = cuda: PyTorch {} finds no CUDA device on this machine: look at "
              "nvidia-smi and CUDA_VISIBLE_DEVICES",
              build_info::kTorch);
}

/// NCCL is loaded by the rank that needs it; who starts ranks finds out before it does.
void check_nccl(const Config& config) {
  if (!config.has_nccl()) return;
  const NcclLibrary& nccl = nccl_library();
  if (!config.on_cuda()) check_carries_host_memory(nccl);
}

}  // namespace

void check_means(const Config& config) {
  check_prefix(config);
  check_device(config);
  check_nccl(config);
  check_kernel(config);
}

int64_t check_run(const Config& config, int num_workers, LocalRanks local) {
  check_means(config);
  const bool on_cpu = !config.on_cuda();
  const std::vector<DeviceFacts> devices = on_cpu ? std::vector<DeviceFacts>() : visible_devices();
  // First of all: what follows may take long where too much is asked for.
  if (on_cpu) check_memory(memory_needed(config, num_workers, local), local, memory_limit());
  check_device_memory(config, num_workers, local, devices, nullptr);
  const BatchPlans plans =
      check_batches_fit(config, checked_batches(config), num_workers, kLookAhead);
  if (on_cpu) {
    check_memory(least_together(peaks_of_batch(config, plans, num_workers, local)), local,
                 memory_limit());
  }
  check_device_memory(config, num_workers, local, devices, &plans);
  check_trace(config);
  return device_cap(config, plans, num_workers, local, devices);
}

Config with_device_cap(const Config& config, Communicator& comm, int64_t own_cap) {
  Config capped = config;
  if (!takes_device_cap(config)) return capped;
  capped.device_cap_bytes =
      std::ranges::min(all_gather(comm, own_cap, "agreeing on the devices' memory"));
  return capped;
}

}  // namespace distca
