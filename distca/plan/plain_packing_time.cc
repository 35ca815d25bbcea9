#include "distca/plan/plain_packing_time.h"

#include <algorithm>

#include "distca/base/error.h"

namespace distca {
namespace {

constexpr double kSecond = 1e-9;  // seconds in a nanosecond

int64_t busy_ns(const RankSample& rank) { return rank.linear_ns + rank.attention_ns; }

/// When the last rank had nothing left to compute or to wait for, counted from the step's begin
/// without what all ranks do alike.
int64_t last_done_ns(std::span<const RankSample> ranks) {
  int64_t last = 0;
  for (const RankSample& rank : ranks) last = std::max(last, busy_ns(rank) + rank.waited_ns);
  return last;
}

/// [ranks] Nanoseconds a unit of work, where `time_ns` and `work` give what a rank had of both.
template <typename Time, typename Work>
std::vector<double> rates(std::span<const RankSample> ranks, const Time& time_ns,
                          const Work& work) {
  constexpr int64_t kLeast = 4;  // a rank's rate counts from a fourth of the mean work on
  int64_t all_ns = 0, all_work = 0;
  for (const RankSample& rank : ranks) {
    all_ns += time_ns(rank);
    all_work += work(rank);
  }
  const auto rate = [](int64_t ns, int64_t of) {
    return of > 0 ? static_cast<double>(ns) / static_cast<double>(of) : 0.0;
  };
  const auto mean_work = all_work / static_cast<int64_t>(ranks.size());
  std::vector<double> result;
  for (const RankSample& rank : ranks) {
    const bool says_nothing = kLeast * work(rank) < mean_work;
    result.push_back(says_nothing ? rate(all_ns, all_work) : rate(time_ns(rank), work(rank)));
  }
  return result;
}

}  // namespace

PackedWork packed_work(std::span<const Plan> plans,
                       const std::shared_ptr<const AttentionProfile>& profile, int together) {
  PackedWork packed;
  for (size_t nano = 0; nano < plans.size(); ++nano) {
    const int workers = plans[nano].cluster.num_workers;
    if (workers < 2 || plans[nano].cluster.num_servers() > workers) return {};
    if (nano % static_cast<size_t>(together) == 0) packed.emplace_back(workers);
    const Plan local = make_plan({.nano_batch = plans[nano].nano_batch,
                                  .cluster = Cluster::in_place(workers),
                                  .shape = plans[nano].shape,
                                  .options = {.scheduler = "local"},
                                  .profile = profile});
    for (int worker = 0; worker < workers; ++worker) {
      packed.back()[worker].tokens += local.layout.num_tokens(worker);
      packed.back()[worker].load += profile ? local.load[worker].time_ns : local.load[worker].pairs;
    }
  }
  return packed;
}

std::vector<double> seconds_waited(std::span<const RankSample> ranks) {
  const int64_t last = last_done_ns(ranks);
  std::vector<double> seconds;
  for (const RankSample& rank : ranks)
    seconds.push_back(kSecond * static_cast<double>(last - busy_ns(rank)));
  return seconds;
}

double plain_packing_adds_s(std::span<const RankSample> ranks, const PackedWork& packed) {
  const std::vector<double> linear = rates(
      ranks, [](const RankSample& rank) { return rank.linear_ns - rank.exchange_ns; },
      [](const RankSample& rank) { return rank.tokens; });
  const std::vector<double> attention = rates(
      ranks, [](const RankSample& rank) { return rank.attention_ns; },
      [](const RankSample& rank) { return rank.load; });
  double total_ns = 0;
  for (const std::vector<RankSample>& together : packed) {
    DISTCA_CHECK_EQ(together.size(), ranks.size());
    double slowest_ns = 0;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto tokens = static_cast<double>(together[rank].tokens);
      const auto load = static_cast<double>(together[rank].load);
      slowest_ns = std::max(slowest_ns, tokens * linear[rank] + load * attention[rank]);
    }
    total_ns += slowest_ns;
  }
  return kSecond * (total_ns - static_cast<double>(last_done_ns(ranks)));
}

}  // namespace distca
