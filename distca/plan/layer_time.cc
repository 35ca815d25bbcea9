#include "distca/plan/layer_time.h"

#include <algorithm>

#include "distca/base/error.h"
#include "distca/cost/task_price.h"
#include "distca/plan/attention_exchange.h"

namespace distca {
namespace {

__extension__ using Wide = __int128;

constexpr int64_t kMostPs = int64_t{1} << 56;  // of one part: sums stay within 64 bits

int64_t scaled(int64_t a, int64_t b, int64_t divisor) {
  return static_cast<int64_t>(std::min(Wide{a} * b / divisor, Wide{kMostPs}));
}

/// One rank's compute of a layer.
struct Work {
  int64_t linear_ps = 0;
  int64_t attention_ps = 0;
  int64_t home_ps = 0;  // of attention: tasks that neither need nor return anything
};

/// One rank's exchanges of a layer, in the order of their use.
struct Wire {
  int64_t dispatch_ps = 0;
  int64_t combine_ps = 0;
  int64_t backward_dispatch_ps = 0;
  int64_t backward_combine_ps = 0;
  int64_t all() const {
    return dispatch_ps + combine_ps + backward_dispatch_ps + backward_combine_ps;
  }
};

class Predictor {
 public:
  Predictor(const Plan& plan, const AttentionProfile* profile, const LayerTimeOptions& options)
      : plan_(plan),
        options_(options),
        price_(plan.shape, profile),
        types_(exchange_types(compute_type(plan.shape.element_bytes), options.wide_gradients)),
        index_(plan) {
    for (const Link* link : {&plan.cluster.inside, &plan.cluster.between}) {
      links_.push_back(*link);
      if (options.speeds.bytes_per_us > 0) links_.back().bytes_per_us = options.speeds.bytes_per_us;
    }
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
    if (evenness_of(options_.hiding) == Evenness::kAttention && bytes_ > 0) {
      // Exchanges make the ranks meet twice a layer.
      compute = linear + attention;
      total = compute + exposed;
    }
    return {.total_ps = total, .exposed_ps = total - compute, .bytes = bytes_};
  }

 private:
  Work work_of(int rank, const RankExchange& exchange) const {
    const RankSpeed& speed = options_.speeds.ranks[rank];
    const bool by_time = plan_.options.by_time();
    const auto attention_ps = [&](int64_t load) {
      return scaled(load, speed.attention_ps_per_kload, 1000 * options_.layers);
    };
    Work work;
    work.attention_ps = attention_ps(by_time ? plan_.load[rank].time_ns : plan_.load[rank].pairs);
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
    const bool inside = plan_.cluster.node(rank) == plan_.cluster.node(peer);
    return std::min(transfer_ns(links_[inside ? 0 : 1], 1, bytes), kMostPs / 1000) * 1000;
  }

  struct Bytes {
    int64_t qkv, o, d_o, gradient;  // d_o: Q, K, V too where they travel again
  };
  Bytes bytes_of(const PeerTransfer& transfer) const {
    const auto bytes = [&](Content content) {
      return message_bytes(content, transfer, plan_.shape, types_);
    };
    const int64_t qkv = bytes(Content::kQkv);
    return {.qkv = qkv,
            .o = bytes(Content::kO),
            .d_o = bytes(Content::kDO) + (options_.redispatched ? qkv : 0),
            .gradient = bytes(Content::kGradient)};
  }

  /// `to`: what goes from homes to servers, `from`: what comes back.
  void add(int rank, int peer, const Bytes& bytes, Wire& to, Wire& from) const {
    to.dispatch_ps += message_ps(rank, peer, bytes.qkv);
    from.combine_ps += message_ps(rank, peer, bytes.o);
    to.backward_dispatch_ps += message_ps(rank, peer, bytes.d_o);
    from.backward_combine_ps += message_ps(rank, peer, bytes.gradient);
  }

  Wire wire_of(int rank, const RankExchange& exchange) {
    // What this rank says to its servers, and to those that it serves.
    Wire out, in;
    for (const PeerTransfer& transfer : exchange.sends) {
      const Bytes bytes = bytes_of(transfer);
      add(rank, transfer.peer, bytes, out, in);
      bytes_ += bytes.qkv + bytes.o + bytes.d_o + bytes.gradient;
    }
    for (const PeerTransfer& transfer : exchange.receives) {
      add(rank, transfer.peer, bytes_of(transfer), in, out);
    }
    const auto longer = [](int64_t a, int64_t b) { return std::min(std::max(a, b), kMostPs); };
    return {.dispatch_ps = longer(out.dispatch_ps, in.dispatch_ps),
            .combine_ps = longer(out.combine_ps, in.combine_ps),
            .backward_dispatch_ps = longer(out.backward_dispatch_ps, in.backward_dispatch_ps),
            .backward_combine_ps = longer(out.backward_combine_ps, in.backward_combine_ps)};
  }

  /// Beyond the operation that each exchange runs under.
  int64_t exposed_ps(const Work& work, const Wire& wire) const {
    const auto beyond = [](int64_t exchange, int64_t compute) {
      return std::max<int64_t>(0, exchange - compute);
    };
    const int64_t linear = work.linear_ps / 3, attention = work.attention_ps * 2 / 7;
    switch (options_.hiding) {
      case Hiding::kNothing:
        return wire.all();
      case Hiding::kHomeTasks: {
        const int64_t forward = work.home_ps * 2 / 7 / 2;
        const int64_t backward = (work.home_ps - work.home_ps * 2 / 7) / 2;
        return beyond(wire.dispatch_ps, forward) + beyond(wire.combine_ps, forward) +
               beyond(wire.backward_dispatch_ps, backward) +
               beyond(wire.backward_combine_ps, backward);
      }
      case Hiding::kOtherNanoBatch:
        break;
    }
    // Of two nano-batches, one enters under the other's linear work and leaves under its attention,
    // the other the other way round.
    const auto half = [&](int64_t exchange, int64_t a, int64_t b) {
      return (beyond(exchange, a) + beyond(exchange, b)) / 2;
    };
    const int64_t back_linear = work.linear_ps - linear;
    const int64_t back_attention = work.attention_ps - attention;
    return half(wire.dispatch_ps, linear, attention) + half(wire.combine_ps, linear, attention) +
           half(wire.backward_dispatch_ps, back_linear, back_attention) +
           half(wire.backward_combine_ps, back_linear, back_attention);
  }

  const Plan& plan_;
  const LayerTimeOptions& options_;
  const TaskPrice price_;
  const ExchangeTypes types_;
  const PlanIndex index_;
  std::vector<Link> links_;  // inside, between
  int64_t bytes_ = 0;
};

}  // namespace

Evenness evenness_of(Hiding hiding) {
  return hiding == Hiding::kOtherNanoBatch ? Evenness::kWhole : Evenness::kAttention;
}

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
