#include "bench/training_speeds.h"

#include <algorithm>
#include <cmath>

#include "distca/base/clock.h"
#include "distca/base/error.h"
#include "distca/comm/collectives.h"
#include "distca/train/speed_sample.h"

namespace distca::bench {
namespace {

constexpr int64_t kWireBytes = 4 << 20;
constexpr int kWireRounds = 8;

/// One rank's sends while all others send too.
int64_t bytes_per_us(Communicator& comm) {
  const std::vector<std::byte> mine(kWireBytes);
  double best_s = 1e9;
  for (int round = 0; round < kWireRounds; ++round) {
    barrier(comm, "wire");
    const Stopwatch watch;
    all_gather_bytes(comm, mine, "wire");
    best_s = std::min(best_s, watch.seconds());
  }
  const std::vector<double> all = all_gather(comm, best_s, "speeds");
  const auto bytes = static_cast<double>(kWireBytes * (comm.size() - 1));
  return std::max<int64_t>(1, std::llround(bytes / *std::ranges::max_element(all) * 1e-6));
}

}  // namespace

Speeds measure_speeds(StepPlayer& player, size_t arm, const std::vector<BatchLengths>& batches,
                      Communicator& comm) {
  SpeedMeter meter(comm.size(), bytes_per_us(comm));
  const StepArm& played = player.arm(arm);
  for (size_t step = 0; step < batches.size(); ++step) {
    int64_t tokens = 0, load = 0;
    for (const Plan& plan :
         plan_step(played, player.llama().config(), batches[step], comm.size())) {
      const ServerLoad& mine = plan.load[comm.rank()];
      tokens += plan.layout.num_tokens(comm.rank());
      load += played.profile ? mine.time_ns : mine.pairs;
    }
    StepResult result;
    player.play(arm, batches[step], &result);
    const std::vector<RankSample> samples =
        all_gather(comm, rank_sample(result.times, tokens, load), "speeds");
    meter.add(static_cast<int64_t>(step), samples);
  }
  DISTCA_CHECK(!meter.speeds().ranks.empty(), "{} steps gave no speeds", batches.size());
  return meter.speeds();
}

}  // namespace distca::bench
