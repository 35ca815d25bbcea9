#include "distca/plan/layer_time.h"

#include <algorithm>
#include <array>

#include "distca/base/error.h"
#include "distca/cost/task_price.h"
#include "distca/plan/attention_exchange.h"

namespace distca {
namespace {

__extension__ using Wide = __int128;

constexpr int64_t kMostPs = int64_t{1} << 56;  // longest time of one part; sums stay within 64 bits

int64_t scaled(int64_t a, int64_t b, int64_t divisor) {
  return static_cast<int64_t>(std::min(Wide{a} * b / divisor, Wide{kMostPs}));
}

/// One rank's compute of a layer.
struct Work {
  int64_t linear_ps = 0;
  int64_t attention_ps = 0;
  int64_t home_ps = 0;  // attention of tasks that neither need nor return anything
};

/// A layer's exchanges in the order of their use: two of forward, two of backward.
constexpr std::array kContents = {Content::kQkv, Content::kO, Content::kDO, Content::kGradient};
/// One rank's time in each.
using Wire = std::array<int64_t, kContents.size()>;

class Predictor {
 public:
  Predictor(const Plan& plan, const AttentionProfile* profile, const LayerTimeOptions& options)
      : plan_(plan),
        options_(options),
        price_(plan.shape, profile),
        types_(exchange_types(plan.shape.type, options.wide_gradients)),
        index_(plan),
        cluster_(plan.cluster) {
    const int64_t measured = options.speeds.bytes_per_us;
    if (measured > 0) cluster_.inside.bytes_per_us = cluster_.between.bytes_per_us = measured;
  }

  LayerTime predict() {
    int64_t linear = 0, attention = 0, exposed = 0, compute = 0, total = 0;
    for (int rank = 0; rank < static_cast<int>(plan_.load.size()); ++rank) {
      const RankExchange exchange = index_.exchange(rank);
      const Work work = work_of(rank, exchange);
      const int64_t shown = exposed_ps(work, wire_of(rank, exchange));
      const int64_t own = work.linear_ps + work.attention_ps;
      linear = std::max(linear, work.linear_ps);
      attention = std::max(attention, work.attention_ps);
      exposed = std::max(exposed, shown);
      compute = std::max(compute, own);
      total = std::max(total, own + shown);
    }
    if (options_.overlap_model != OverlapModel::kOtherNanoBatch && bytes_ > 0) {
      // Exchanges make the ranks meet twice a layer.
      compute = linear + attention;
      total = compute + exposed;
    }
    return {.total_ps = total, .exposed_ps = total - compute, .bytes = bytes_};
  }

 private:
  Work work_of(int rank, const RankExchange& exchange) const {
    const RankSpeed& speed = options_.speeds.ranks[rank];
    const auto attention_ps = [&](int64_t load) {
      return scaled(load, speed.attention_ps_per_kload, 1000 * options_.layers);
    };
    Work work;
    work.attention_ps = attention_ps(load_of(plan_, rank));
    if (rank < plan_.cluster.num_workers) {
      work.linear_ps = scaled(exchange.local_tokens, speed.linear_ps_per_token, options_.layers);
    }
    int64_t home_load = 0;
    for (const ServerTask& task : exchange.tasks) {
      const Task& whole = plan_.tasks[task.task];
      if (is_home(task)) home_load += price_(whole.q, whole.kv, whole.mask);
    }
    work.home_ps = std::min(work.attention_ps, attention_ps(home_load));
    return work;
  }

  int64_t message_ps(int rank, int peer, int64_t bytes) const {
    if (bytes == 0) return 0;
    return std::min(transfer_ns(cluster_.link(rank, peer), 1, bytes), kMostPs / 1000) * 1000;
  }

  int64_t bytes_of(Content content, const PeerTransfer& transfer) const {
    const auto bytes = [&](Content part) {
      return message_bytes(part, transfer, plan_.shape, types_);
    };
    const bool again = content == Content::kDO && options_.redispatched;
    return bytes(content) + (again ? bytes(Content::kQkv) : 0);
  }

  /// The longer of sending and receiving.
  Wire wire_of(int rank, const RankExchange& exchange) {
    Wire wire;
    for (size_t i = 0; i < kContents.size(); ++i) {
      int64_t with_servers_ps = 0, with_homes_ps = 0;
      for (const PeerTransfer& transfer : exchange.sends) {
        const int64_t bytes = bytes_of(kContents[i], transfer);
        with_servers_ps += message_ps(rank, transfer.peer, bytes);
        bytes_ += bytes;
      }
      for (const PeerTransfer& transfer : exchange.receives) {
        with_homes_ps += message_ps(rank, transfer.peer, bytes_of(kContents[i], transfer));
      }
      wire[i] = std::min(std::max(with_servers_ps, with_homes_ps), kMostPs);
    }
    return wire;
  }

  /// Beyond the operation that each exchange runs under.
  int64_t exposed_ps(const Work& work, const Wire& wire) const {
    const auto beyond = [](int64_t exchange, int64_t compute) {
      return std::max<int64_t>(0, exchange - compute);
    };
    const auto part = [](int64_t both_passes, int64_t forward, bool backward) {
      return backward ? both_passes - forward : forward;
    };
    int64_t exposed = 0;
    for (size_t i = 0; i < wire.size(); ++i) {
      const bool backward = i >= wire.size() / 2;
      const int64_t linear = part(work.linear_ps, work.linear_ps / 3, backward);
      const int64_t attention = part(work.attention_ps, work.attention_ps * 2 / 7, backward);
      switch (options_.overlap_model) {
        case OverlapModel::kNothing:
          exposed += wire[i];
          break;
        case OverlapModel::kHomeTasks:
          exposed += beyond(wire[i], part(work.home_ps, work.home_ps * 2 / 7, backward) / 2);
          break;
        case OverlapModel::kOtherNanoBatch:
          // One nano-batch enters core attention under the other's linear work and leaves it under
          // the other's attention. For the other it is the reverse.
          exposed += (beyond(wire[i], linear) + beyond(wire[i], attention)) / 2;
          break;
      }
    }
    return exposed;
  }

  const Plan& plan_;
  const LayerTimeOptions& options_;
  const TaskPrice price_;
  const ExchangeTypes types_;
  const PlanIndex index_;
  Cluster cluster_;  // with the bandwidth that was measured
  int64_t bytes_ = 0;
};

}  // namespace

LayerTime layer_time(const Plan& plan, const AttentionProfile* profile,
                     const LayerTimeOptions& options) {
  DISTCA_CHECK_EQ(options.speeds.ranks.size(), plan.load.size());
  DISTCA_CHECK_GE(options.layers, 1);
  return Predictor(plan, profile, options).predict();
}

int64_t least_layer_ps(const Cluster& cluster, int64_t tokens, int64_t load,
                       const LayerTimeOptions& options) {
  // In loads a picosecond: the time that all servers need together is load over their sum, and a
  // worker's linear work takes the place of some.
  double rate = 0, linear_load = 0, most_linear = 0;
  for (int server = 0; server < cluster.num_servers(); ++server) {
    const RankSpeed& speed = options.speeds.ranks[server];
    const bool worker = server < cluster.num_workers;
    const double linear = worker ? static_cast<double>(speed.linear_ps_per_token) *
                                       static_cast<double>(tokens / cluster.num_workers)
                                 : 0.0;
    most_linear = std::max(most_linear, linear);
    if (cluster.capacity[server] == 0) continue;
    const double own = 1000 / static_cast<double>(speed.attention_ps_per_kload);
    rate += own;
    linear_load += own * linear;
  }
  const auto layers = static_cast<double>(options.layers);
  const auto whole = static_cast<double>(load);
  const double ps = std::max(most_linear, (whole + linear_load) / rate);
  return static_cast<int64_t>(std::min(ps / layers, 0x1p60));
}

}  // namespace distca
