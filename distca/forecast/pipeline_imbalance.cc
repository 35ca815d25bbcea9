#include "distca/forecast/pipeline_imbalance.h"

#include <algorithm>

namespace distca {
namespace {

/// Predicted picoseconds of each rank in each tick.
class TickTimes {
 public:
  TickTimes(size_t ticks, int ranks)
      : linear_(ticks, std::vector<double>(ranks)), attention_(linear_) {}

  void add_linear(size_t tick, size_t rank, double ps) { linear_[tick][rank] += ps; }
  void add_attention(size_t tick, size_t rank, double ps) { attention_[tick][rank] += ps; }

  double length_over_mean(Evenness evenness) const {
    double length = 0, work = 0;
    for (size_t tick = 0; tick < linear_.size(); ++tick) {
      double longest = 0;
      for (size_t rank = 0; rank < linear_[tick].size(); ++rank) {
        const double of_rank = linear_[tick][rank] + attention_[tick][rank];
        work += of_rank / static_cast<double>(linear_[tick].size());
        longest = std::max(longest, of_rank);
      }
      length += evenness == Evenness::kWhole
                    ? longest
                    : std::ranges::max(linear_[tick]) + std::ranges::max(attention_[tick]);
    }
    return work > 0 ? length / work : 1.0;
  }

 private:
  std::vector<std::vector<double>> linear_, attention_;  // [tick][rank]
};

class Prediction {
 public:
  Prediction(const PipelineParts& parts, const std::vector<std::vector<int64_t>>& packed)
      : parts_(parts),
        request_(parts.request()),
        packed_(packed),
        most_layers_(std::ranges::max_element(parts.layers(), {}, &Range::size)->size()),
        before_(parts.ticks().size(), parts.grid().num_ranks()),
        after_(before_) {
    add_exchanges();
    for (size_t tick = 0; tick < parts.ticks().size(); ++tick) {
      for (int stage = 0; stage < parts.grid().stages; ++stage) add_home(tick, stage);
    }
  }

  PipelineImbalance result() const {
    // With 1f1b, stages do not meet before and after core attention.
    const Evenness evenness = is_at_home() ? Evenness::kWhole : request_.evenness;
    return {.before = before_.length_over_mean(evenness),
            .after = after_.length_over_mean(evenness)};
  }

 private:
  bool is_at_home() const { return parts_.schedule() == PipelineSchedule::kAtHome; }
  /// Speeds of attention are those of the layer steps of the largest stage.
  double attention_ps(const RankWork& work, double load, int64_t layers) const {
    return load * 1e-3 * static_cast<double>(work.attention_ps_per_kload) *
           static_cast<double>(layers) / static_cast<double>(most_layers_);
  }

  /// Adds the servers' core attention to the ticks after balancing, and finds the load of a pair.
  /// With 1f1b, add_home() adds the attention.
  void add_exchanges() {
    double load = 0, pairs = 0;
    const std::vector<OrderedExchange>& exchanges = parts_.order().exchanges;
    for (size_t i = 0; i < exchanges.size(); ++i) {
      const OrderedExchange& exchange = exchanges[i];
      const auto work = slot_work(request_, exchange.nano_batches, exchange.pass);
      const std::vector<ServerLoad>& loads = parts_.plan(i).load;
      for (size_t rank = 0; rank < loads.size(); ++rank) {
        const auto of_rank =
            static_cast<double>(request_.profile ? loads[rank].time_ns : loads[rank].pairs);
        load += of_rank;
        pairs += static_cast<double>(loads[rank].pairs);
        if (is_at_home()) continue;
        after_.add_attention(exchange.tick, rank,
                             attention_ps(work[rank], of_rank, exchange.layer_steps));
      }
    }
    if (pairs > 0) load_of_pair_ = load / pairs;
  }

  /// Adds the work of a stage's workers for their own nano-batches in a tick.
  void add_home(size_t tick, int stage) {
    const Grid& grid = parts_.grid();
    const auto& [micro_batch, pass] = parts_.ticks()[tick].stages[stage];
    if (micro_batch < 0) return;
    const size_t first = static_cast<size_t>(micro_batch) * request_.slots;
    for (size_t nano = first; nano < std::min(first + request_.slots, packed_.size()); ++nano) {
      std::vector<int> own(grid.stages, -1);
      own[stage] = static_cast<int>(nano);
      const std::vector<RankWork> all = slot_work(request_, own, pass);
      for (int replica = 0; replica < grid.replicas; ++replica) {
        const int rank = grid.rank(stage, replica);
        const RankWork& work = all[rank];
        const double linear =
            static_cast<double>(request_.homes[nano].num_tokens(replica)) *
            static_cast<double>(work.layers_ps_per_token + work.ends_ps_per_token);
        const double load = load_of_pair_ * static_cast<double>(packed_[nano][replica]);
        const double attention = attention_ps(work, load, parts_.layers()[stage].size());
        before_.add_linear(tick, rank, linear);
        before_.add_attention(tick, rank, attention);
        after_.add_linear(tick, rank, linear);
        if (is_at_home()) after_.add_attention(tick, rank, attention);
      }
    }
  }

  const PipelineParts& parts_;
  const PipelineRequest& request_;
  const std::vector<std::vector<int64_t>>& packed_;
  int64_t most_layers_;
  TickTimes before_, after_;
  double load_of_pair_ = 1;
};

}  // namespace

PipelineImbalance pipeline_imbalance(const PipelineParts& parts,
                                     const std::vector<std::vector<int64_t>>& packed) {
  return Prediction(parts, packed).result();
}

}  // namespace distca
