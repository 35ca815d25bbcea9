#include "distca/cost/speeds.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "distca/base/error.h"
#include "distca/cost/attention_shape.h"
#include "distca/cost/stage_layers.h"
#include "distca/cost/task_price.h"

namespace distca {
namespace {

__extension__ using Wide = __int128;  // times of all servers together, weighted

constexpr int64_t kMostPs = int64_t{1} << 62;   // most time of one rank; longer ones are cut to it
constexpr int64_t kFastest = int64_t{1} << 30;  // weight of the fastest server

int64_t product_ps(int64_t a, int64_t b, int64_t divisor) {
  return static_cast<int64_t>(std::min(Wide{a} * b / divisor, Wide{kMostPs}));
}

/// Mean of the ranks' values above 0; 0 if there is none.
template <typename Ranks, typename Value>
int64_t mean_of_known(const Ranks& ranks, const Value& value_of) {
  Wide sum = 0, known = 0;
  for (const auto& rank : ranks) {
    const int64_t value = std::invoke(value_of, rank);
    if (value <= 0) continue;
    sum += value;
    ++known;
  }
  return known == 0 ? 0 : static_cast<int64_t>(sum / known);
}

struct PooledRank {
  int64_t weight = 0;  // speed: kFastest at most, 0 if it does not serve
  int64_t linear_ps = 0;
};

/// The time at which sum over servers of max(0, time - linear_ps) * weight is all the load, in
/// whole picoseconds: wide, for a slow server alone may take longer than any rank's own time.
/// `load_ps` is the time of all load on the fastest server alone.
Wide finish_ps(std::vector<PooledRank> ranks, int64_t load_ps) {
  std::ranges::stable_sort(ranks, {}, &PooledRank::linear_ps);
  Wide work = Wide{load_ps} * kFastest;
  Wide weight = 0, finish = 0;
  for (const PooledRank& rank : ranks) {
    if (rank.weight == 0) continue;
    if (weight > 0 && finish <= rank.linear_ps) break;
    work += Wide{rank.linear_ps} * rank.weight;
    weight += rank.weight;
    finish = work / weight;
  }
  return finish;
}

/// Whole numbers in the ratio of the shares.
std::vector<int64_t> as_capacities(const std::vector<Wide>& shares) {
  const Wide most = std::ranges::max(shares);
  std::vector<int64_t> capacities;
  int64_t divisor = 0;
  for (const Wide share : shares) {
    const auto units = static_cast<int64_t>((share * kCapacityUnits + most / 2) / most);
    capacities.push_back(share > 0 ? std::max<int64_t>(1, units) : 0);
    divisor = std::gcd(divisor, capacities.back());
  }
  for (int64_t& capacity : capacities) capacity /= divisor;
  return capacities;
}

}  // namespace

Speeds assumed_speeds(const ModelShape& layers, int num_servers, const AttentionProfile* profile,
                      int64_t products_again) {
  const Wide token_flops =
      Wide{2} * (Wide{3} * layer_products(layers) + products_again) * layers.num_layers;
  const Wide kload_flops = Wide{7} * layers.num_layers * layers.attention.pair_products() * 1000;
  RankSpeed speed;
  if (profile == nullptr) {
    speed.linear_ps_per_token = static_cast<int64_t>(token_flops / kAssumedTflops);
    speed.attention_ps_per_kload = static_cast<int64_t>(kload_flops / kAssumedTflops);
  } else {
    // A thousand ns of load in each layer.
    speed.attention_ps_per_kload = layers.num_layers * 1'000'000;
    const AttentionShape& measured = profile->shape;
    const int64_t tokens = std::min(profile->q_tokens.back(), profile->kv_tokens.back());
    const TaskPrice price(measured, profile);
    const Range all{0, tokens};
    const Wide flops = Wide{7} * Mask{}.pairs(all, all) * measured.pair_products();
    speed.linear_ps_per_token =
        static_cast<int64_t>(token_flops * price(all, all) * 1000 / std::max<Wide>(1, flops));
  }
  speed.linear_ps_per_token = std::max<int64_t>(1, speed.linear_ps_per_token);
  speed.attention_ps_per_kload = std::max<int64_t>(1, speed.attention_ps_per_kload);
  Speeds speeds;
  speeds.ranks.assign(num_servers, speed);
  return speeds;
}

Speeds fill_in_speeds(const Speeds& measured, const Speeds& stated) {
  const int64_t usual_attention = mean_of_known(measured.ranks, &RankSpeed::attention_ps_per_kload);
  const int64_t usual_linear = mean_of_known(measured.ranks, &RankSpeed::linear_ps_per_token);
  Speeds known = measured;
  if (usual_attention == 0 || usual_linear == 0) {
    known.ranks = stated.ranks;
    return known;
  }
  for (RankSpeed& rank : known.ranks) {
    if (rank.attention_ps_per_kload == 0) rank.attention_ps_per_kload = usual_attention;
    if (rank.linear_ps_per_token == 0) rank.linear_ps_per_token = usual_linear;
  }
  return known;
}

std::vector<RankWork> work_of_step(const Speeds& speeds, int num_workers, int num_servers,
                                   bool in_place, int64_t tokens) {
  DISTCA_CHECK(num_workers >= 1 && num_servers >= num_workers, "{} workers, {} servers",
               num_workers, num_servers);
  DISTCA_CHECK(speeds.ranks.empty() || speeds.ranks.size() == static_cast<size_t>(num_servers),
               "speeds of {} ranks for {} servers", speeds.ranks.size(), num_servers);
  std::vector<RankWork> work(num_servers);
  for (int rank = 0; rank < num_servers; ++rank) {
    const bool worker = rank < num_workers;
    if (worker) work[rank].tokens = tokens;
    work[rank].serves = in_place || !worker || num_servers == num_workers;
    if (speeds.ranks.empty()) continue;
    work[rank].layers_ps_per_token = speeds.ranks[rank].linear_ps_per_token;
    work[rank].attention_ps_per_kload = speeds.ranks[rank].attention_ps_per_kload;
  }
  return work;
}

std::vector<int64_t> even_capacities(std::span<const RankWork> ranks, BalanceTarget balance_target,
                                     int64_t load) {
  DISTCA_CHECK(load >= 0, "a load of {}", load);
  DISTCA_CHECK(std::ranges::any_of(ranks, &RankWork::serves), "none of {} ranks serves",
               ranks.size());
  const int64_t usual_attention = mean_of_known(ranks, &RankWork::attention_ps_per_kload);
  const int64_t usual_layers = mean_of_known(
      ranks, [](const RankWork& work) { return work.tokens > 0 ? work.layers_ps_per_token : 0; });
  const bool whole = balance_target == BalanceTarget::kWhole && usual_attention > 0 && load > 0;
  const auto attention_ps = [&](const RankWork& work) {
    return work.attention_ps_per_kload > 0 ? work.attention_ps_per_kload
                                           : std::max<int64_t>(1, usual_attention);
  };
  int64_t fastest = std::numeric_limits<int64_t>::max();
  for (const RankWork& work : ranks) {
    DISTCA_CHECK(work.tokens >= 0, "{} tokens", work.tokens);
    if (work.serves) fastest = std::min(fastest, attention_ps(work));
  }
  std::vector<PooledRank> pool(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankWork& work = ranks[rank];
    if (!work.serves) continue;
    pool[rank].weight =
        std::max<int64_t>(1, static_cast<int64_t>(Wide{fastest} * kFastest / attention_ps(work)));
    if (!whole) continue;
    const Wide layers_ps = product_ps(
        work.layers_ps_per_token > 0 ? work.layers_ps_per_token : usual_layers, work.tokens, 1);
    const int64_t ends_ps = product_ps(work.ends_ps_per_token, work.tokens, 1);
    pool[rank].linear_ps =
        static_cast<int64_t>(std::min(layers_ps + ends_ps + work.other_ps, Wide{kMostPs}));
  }
  const Wide finish = whole ? finish_ps(pool, product_ps(load, fastest, 1000)) : 1;
  std::vector<Wide> shares;
  for (const PooledRank& rank : pool)
    shares.push_back(std::max<Wide>(0, finish - rank.linear_ps) * rank.weight);
  if (std::ranges::max(shares) == 0) {  // less load than a picosecond's
    std::ranges::transform(pool, shares.begin(),
                           [](const PooledRank& rank) { return rank.weight; });
  }
  return as_capacities(shares);
}

}  // namespace distca
