#include "distca/forecast/plan_figures.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "distca/base/error.h"
#include "distca/config/run_grid.h"
#include "distca/plan/bounds.h"

namespace distca {
namespace {

/// By how much those who share a batch's load wait: the sum over nano-batches of the busiest one's
/// time over the sum of the mean.
class Imbalance {
 public:
  /// `weight`: of how many of these loads the sum is.
  void add(const Cluster& cluster, const std::vector<int64_t>& load, double weight) {
    const auto total =
        weight * static_cast<double>(std::accumulate(load.begin(), load.end(), int64_t{0}));
    max_ += total * max_over_mean(cluster, load);
    mean_ += total;
  }
  double value() const { return mean_ > 0 ? max_ / mean_ : 1.0; }

 private:
  double max_ = 0, mean_ = 0;
};

class Figures {
 public:
  Figures(const Config& config, int num_workers, PlanFigures* figures)
      : config_(config),
        figures_(*figures),
        num_workers_(run_grid(config, num_workers).grid.num_workers()) {
    const auto servers = static_cast<size_t>(num_servers(config, num_workers_));
    if (config.attention_profile) figures_.attention_predicted_s.assign(servers, 0);
    figures_.load_before.assign(servers, 0);
    figures_.load_after.assign(servers, 0);
    work_.resize(servers);
  }

  void add_nano_batch(const BatchPlans& plans, size_t nano) {
    const std::vector<int64_t> layers = config_.model.num_layers_of_windows();
    for (size_t window = 0; window < layers.size(); ++window)
      add_window(plans.plan(nano, window), layers[window]);
    const Plan& plan = plans.plan(nano);
    for (int worker = 0; worker < num_workers_; ++worker)
      work_[worker].tokens += plan.layout.num_tokens(worker);
    if (config_.plan.tolerance.is_auto) {
      figures_.chosen.push_back(
          fmt::format("{} {:g}", plan.options.scheduler,
                      static_cast<double>(*plan.options.tolerance_ppm) * 1e-6));
    }
  }

  void add_pipeline(const PipelineParts& parts) {
    const PipelineRequest& request = parts.request();
    const Grid& grid = parts.grid();
    std::vector<std::vector<int64_t>> packed;  // [nano-batch][replica]
    for (size_t nano = 0; nano < request.homes.size(); ++nano) {
      const Plan alone{.nano_batch = request.nano_batches[nano],
                       .cluster = Cluster::in_place(grid.replicas),
                       .shape = request.shape,
                       .layout = request.homes[nano],
                       .load = std::vector<ServerLoad>(grid.replicas)};
      packed.push_back(packed_load(alone));
      figures_.pairs = std::accumulate(packed[nano].begin(), packed[nano].end(), figures_.pairs);
      for (int rank = 0; rank < grid.num_workers(); ++rank)
        work_[rank].tokens += request.homes[nano].num_tokens(grid.replica(rank));
    }
    const std::vector<OrderedExchange>& exchanges = parts.order().exchanges;
    for (size_t i = 0; i < exchanges.size(); ++i) add_exchange(parts, i, packed);
  }

  const std::vector<RankSample>& work() const { return work_; }

 private:
  /// The plan is for so many of the layers, over all of which loads are a mean.
  void add_window(const Plan& plan, int64_t layers) {
    const int64_t all = config_.model.num_hidden_layers;
    std::vector<int64_t> before = packed_load(plan);
    // Plain packing knows no servers but workers.
    add_imbalance(Cluster::in_place(num_workers_), before, plan,
                  static_cast<double>(layers) / static_cast<double>(all));
    std::vector<ServerLoad> mean = plan.load;
    for (int64_t& load : before) load = share_of(load, layers, all);
    for (ServerLoad& load : mean) {
      load.pairs = share_of(load.pairs, layers, all);
      load.time_ns = share_of(load.time_ns, layers, all);
      figures_.pairs += load.pairs;
    }
    add_load(mean, before, 1);
    add_predicted(plan, static_cast<double>(layers));
  }

  void add_exchange(const PipelineParts& parts, size_t index,
                    const std::vector<std::vector<int64_t>>& packed) {
    const OrderedExchange& exchange = parts.order().exchanges[index];
    const Grid& grid = parts.grid();
    const bool at_home = parts.schedule() == PipelineSchedule::kAtHome;
    // A profile's time is that of both passes, and 2/7 of it forward. With 1f1b, both passes of a
    // nano-batch go through one exchange.
    const double passes = at_home ? 1 : exchange.pass == Pass::kForward ? 2. / 7 : 5. / 7;
    for (int stage = 0; stage < (at_home ? grid.stages : 1); ++stage) {
      const Plan& plan = parts.plan(index, stage);
      // With 1f1b, an exchange has as many layer steps as the largest stage has layers.
      const int64_t steps =
          at_home ? std::min<int64_t>(parts.layers()[stage].size(), exchange.layer_steps)
                  : exchange.layer_steps;
      add_predicted(plan, passes * static_cast<double>(steps));
      if (exchange.pass == Pass::kBackward) continue;
      std::vector<int64_t> before(grid.num_workers(), 0);
      for (int rank = 0; rank < grid.num_workers(); ++rank) {
        const int nano = exchange.nano_batches[grid.stage(rank)];
        if (nano >= 0 && (!at_home || grid.stage(rank) == stage))
          before[rank] = packed[nano][grid.replica(rank)];
      }
      add_imbalance(at_home ? plan.cluster : Cluster::in_place(grid.num_workers()), before, plan,
                    static_cast<double>(steps));
      add_load(plan.load, before, steps);
    }
  }

  /// Adds loads before balancing, of this cluster, and those under a plan.
  void add_imbalance(const Cluster& packing, const std::vector<int64_t>& before, const Plan& plan,
                     double weight) {
    before_.add(packing, before, weight);
    std::vector<int64_t> after;
    std::ranges::transform(plan.load, std::back_inserter(after), &ServerLoad::pairs);
    after_.add(plan.cluster, after, weight);
    figures_.imbalance_before = before_.value();
    figures_.imbalance_after = after_.value();
  }

  /// Adds the loads of `steps` layers under a plan, and of as many before balancing.
  void add_load(const std::vector<ServerLoad>& loads, const std::vector<int64_t>& before,
                int64_t steps) {
    for (size_t server = 0; server < loads.size(); ++server) {
      const ServerLoad& load = loads[server];
      if (server < before.size()) figures_.load_before[server] += steps * before[server];
      figures_.load_after[server] += steps * load.pairs;
      work_[server].load += steps * (config_.attention_profile ? load.time_ns : load.pairs);
    }
  }

  /// Adds the time that the profile, if there is one, predicts for so many layers, both passes.
  void add_predicted(const Plan& plan, double layers) {
    if (!config_.attention_profile) return;
    for (size_t server = 0; server < plan.load.size(); ++server) {
      figures_.attention_predicted_s[server] +=
          1e-9 * static_cast<double>(plan.load[server].time_ns) * layers;
    }
  }

  const Config& config_;
  PlanFigures& figures_;
  const int num_workers_;         // servers with tokens
  std::vector<RankSample> work_;  // [servers]
  Imbalance before_, after_;
};

}  // namespace

std::vector<RankSample> add_plan_figures(const Config& config, const Batch& batch,
                                         const BatchPlans& plans, int num_workers,
                                         PlanFigures* figures) {
  figures->hash = plans_hash(plans);
  for (const NanoBatchSource& source : batch) {
    figures->tokens += source.nano_batch.num_tokens();
    figures->targets += source.num_targets();
  }
  figures->num_redispatched = plans.redispatched ? static_cast<int64_t>(batch.size()) : 0;
  Figures sums(config, num_workers, figures);
  for (size_t nano = 0; nano < plans.num_nano_batches(); ++nano) sums.add_nano_batch(plans, nano);
  if (plans.pipeline) sums.add_pipeline(*plans.pipeline);
  return sums.work();
}

}  // namespace distca
