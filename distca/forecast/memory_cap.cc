#include "distca/forecast/memory_cap.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "distca/base/integers.h"
#include "distca/forecast/batch_programs.h"
#include "distca/forecast/memory_peak.h"

namespace distca {

bool takes_device_cap(const Config& config) {
  return config.on_cuda() && config.plan.max_memory_gib == 0 &&
         config.exchange.keys == Config::Exchange::Keys::kAuto &&
         config.parallel.pipeline_model_parallel_size == 1 && !config.model.windows_differ() &&
         config.train.steps > 0;
}

int64_t device_cap(const Config& config, const BatchPlans& plans, int num_workers, LocalRanks local,
                   const std::vector<DeviceFacts>& devices) {
  if (!takes_device_cap(config) || devices.empty()) return 0;
  BatchPlans redispatched = plans;  // whose buffers hold no kept keys
  redispatched.redispatched = true;
  const BatchPrograms programs(config, redispatched, ProgramRequest::Kind::kTrain, num_workers);
  const int sharing = config.ranks_are_threads() ? local.count : 1;
  int64_t cap = std::numeric_limits<int64_t>::max();
  for (int rank = local.first; rank < local.first + local.count; ++rank) {
    const DeviceFacts& device = device_of(config, rank, local, devices);
    PeakOfRank of_rank(config, rank, num_workers, device.multiprocessors);
    const PeakMemory peak = of_rank.add(programs.of(rank)).peak();
    const double others =
        standing_memory(config, num_workers, {.first = rank, .count = 1}).total() +
        peak.of(MemoryPart::kBuffers) + peak.most_passing;
    const int64_t all = device.bytes - device.bytes / 100 * kDeviceReservePercent - kDeviceReserve;
    cap = std::min(cap, all / sharing - static_cast<int64_t>(others));
  }
  return std::max(kDeviceCapUnit, round_down(std::max<int64_t>(cap, 0), kDeviceCapUnit));
}

std::string describe_device_cap(int64_t bytes) {
  return fmt::format("{:g} GiB", static_cast<double>(bytes) / 0x1p30);
}

}  // namespace distca
