#include "distca/program/pipeline_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "distca/base/error.h"

namespace distca {
namespace {

/// The work of a stage in a tick and slot. Nano-batch -1 means none.
struct Work {
  int nano_batch = -1;
  Pass pass = Pass::kForward;
  int virtual_stage = 0;
  bool operator==(const Work&) const = default;
};
using Works = std::vector<Work>;  // [stage]

Works works_of(const PipelineShape& shape, const Tick& tick, int slot) {
  DISTCA_CHECK_EQ(tick.stages.size(), shape.layers.size());
  Works works;
  for (const TickStage& stage : tick.stages)
    works.push_back({shape.nano_batch(stage, slot), stage.pass, stage.virtual_stage});
  return works;
}

/// The stage with this index. Ranks that only serve are behind the last one and have no layers.
Stage stage_of(const PipelineShape& shape, int stage) {
  const auto stages = static_cast<int>(shape.layers.size());
  return {.index = stage,
          .count = stages,
          .layers = stage < stages ? shape.layers[stage] : Range(),
          .virtual_stages = shape.virtual_stages};
}

bool is_idle(const Works& works) {
  return std::ranges::all_of(works, [](const Work& work) { return work.nano_batch < 0; });
}

/// Returns the stage that made the input of this one, or -1 if this one begins by itself.
int source(const Work& work, int stage, int stages) {
  const int from = work.pass == Pass::kForward ? stage - 1 : stage + 1;
  return from < stages ? from : -1;
}

/// Returns what a stage sends and receives, point-to-point, of what these stages have just ended,
/// in the order of all ranks.
std::vector<P2pOp> p2p_ops_of(const Works& ended, int stage, int virtual_stages = 1) {
  const int stages = static_cast<int>(ended.size());
  std::vector<P2pOp> result;
  const auto add = [&](int from, int to, Pass pass) {
    const Work& work = ended[from];
    if (work.nano_batch < 0 || work.pass != pass || (from != stage && to != stage)) return;
    const bool is_around = from - to != (pass == Pass::kForward ? -1 : 1);
    const int end = pass == Pass::kForward ? virtual_stages - 1 : 0;
    if (is_around && work.virtual_stage == end) return;
    result.push_back(
        {.pass = pass,
         .nano_batch = work.nano_batch,
         .is_receive = to == stage,
         .virtual_stage = work.virtual_stage - (is_around && pass == Pass::kBackward ? 1 : 0)});
  };
  for (const int parity : {0, 1}) {
    for (int lower = parity; lower + 1 < stages; lower += 2) {
      add(lower, lower + 1, Pass::kForward);
      add(lower + 1, lower, Pass::kBackward);
    }
  }
  if (virtual_stages > 1) {
    add(stages - 1, 0, Pass::kForward);
    add(0, stages - 1, Pass::kBackward);
  }
  return result;
}

/// The weight gradients of these nano-batches, in the order in which backward has left them.
std::vector<WeightGradientOp> weight_gradients_of(std::span<const int> nano_batches,
                                                  const Range& layers) {
  std::vector<WeightGradientOp> all;
  for (const int nano : nano_batches) {
    for (int64_t layer = layers.end; layer-- > layers.begin;)
      all.push_back({.nano_batch = nano, .layer = static_cast<int>(layer)});
  }
  return all;
}

class PooledOrder {
 public:
  PooledOrder(const PipelineShape& shape, const WeightGradients& weight_gradients)
      : shape_(shape),
        weight_gradients_(weight_gradients),
        stages_(static_cast<int>(shape.layers.size())) {
    order_.visits.assign(stages_ + 1, std::vector<std::vector<Visit>>(shape.slots));
  }

  PipelineOrder make(const std::vector<Tick>& ticks) {
    std::vector<Works> before(shape_.slots, Works(stages_));
    for (size_t tick = 0; tick < ticks.size(); ++tick) {
      for (int slot = 0; slot < shape_.slots; ++slot) {
        const Works works = works_of(shape_, ticks[tick], slot);
        if (is_idle(works)) continue;
        add_tick(static_cast<int>(tick), slot, works, begins_with(before[slot], works));
        before[slot] = works;
      }
    }
    return std::move(order_);
  }

 private:
  /// Returns true if some stage begins with what was made in the tick before.
  bool begins_with(const Works& before, const Works& works) const {
    for (int stage = 0; stage < stages_; ++stage) {
      const int from = source(works[stage], stage, stages_);
      if (works[stage].nano_batch >= 0 && from >= 0 && before[from] == works[stage]) return true;
    }
    return false;
  }

  void add_tick(int tick, int slot, const Works& works, bool starts_late) {
    std::set<int64_t> ends;
    for (int stage = 0; stage < stages_; ++stage) {
      if (works[stage].nano_batch >= 0) ends.insert(shape_.layers[stage].size());
    }
    Range steps{0, 0};
    for (const int64_t end : ends) {
      steps = {steps.end, end};
      add_steps(tick, slot, works, steps, starts_late && steps.begin == 0);
      add_weight_gradients(tick, slot, steps, *ends.rbegin());
    }
  }

  /// Adds those of these layer steps, of `all` that the tick has.
  void add_weight_gradients(int tick, int slot, const Range& steps, int64_t all) {
    if (weight_gradients_.empty()) return;
    for (int stage = 0; stage < stages_; ++stage) {
      const StageWeights& weights = weight_gradients_[tick][slot][stage];
      std::vector<Visit>& visits = order_.visits[stage][slot];
      for (size_t i = visits.size(); i-- > 0 && visits[i].tick == tick;)
        visits[i].leaves_weights = weights.leaves && visits[i].pass == Pass::kBackward;
      std::vector<WeightGradientOp> played =
          weight_gradients_of(weights.plays, shape_.layers[stage]);
      for (int64_t i = 0; i < std::ssize(played); ++i) {
        const int64_t step = i * all / std::ssize(played);
        if (step < steps.begin || step >= steps.end) continue;
        played[i].turn = static_cast<int>(step - steps.begin);
        visits.back().weight_gradients.push_back(played[i]);
      }
    }
  }

  /// Adds some layer steps of a tick, all of which the same stages have.
  void add_steps(int tick, int slot, Works works, const Range& steps, bool starts_late) {
    Works ended = works;
    for (int stage = 0; stage < stages_; ++stage) {
      const int64_t layers = shape_.layers[stage].size();
      if (layers < steps.end) works[stage].nano_batch = -1;
      if (layers != steps.end) ended[stage].nano_batch = -1;
    }
    bool is_beside = false;
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const int exchange = exchange_of(tick, slot, works, pass, steps);
      if (exchange < 0) continue;
      for (int stage = 0; stage <= stages_; ++stage) {
        Visit visit{.pass = pass,
                    .tick = tick,
                    .exchange = exchange,
                    .redispatched = pass == Pass::kBackward,
                    .is_beside = is_beside,
                    .starts_late = starts_late && !is_beside};
        if (stage < stages_) visit.nano_batch = order_.exchanges[exchange].nano_batches[stage];
        if (visit.nano_batch >= 0) visit.layers = layers_of(stage, pass, steps);
        order_.visits[stage][slot].push_back(std::move(visit));
      }
      is_beside = true;
    }
    for (int stage = 0; stage < stages_; ++stage)
      order_.visits[stage][slot].back().p2p_ops = p2p_ops_of(ended, stage);
  }

  Range layers_of(int stage, Pass pass, const Range& steps) const {
    const Range& layers = shape_.layers[stage];
    if (pass == Pass::kForward) return {layers.begin + steps.begin, layers.begin + steps.end};
    return {layers.end - steps.end, layers.end - steps.begin};
  }

  /// Returns the exchange of the stages that play this pass, or -1 if none does.
  int exchange_of(int tick, int slot, const Works& works, Pass pass, const Range& steps) {
    std::vector<int> nano_batches;
    for (const Work& work : works) nano_batches.push_back(work.pass == pass ? work.nano_batch : -1);
    if (std::ranges::max(nano_batches) < 0) return -1;
    const auto next = static_cast<int>(order_.exchanges.size());
    // With one stage, backward pools what forward has.
    if (stages_ == 1) {
      const auto [place, is_new] = forward_.emplace(nano_batches[0], next);
      if (!is_new) return place->second;
    }
    order_.exchanges.push_back({.tick = tick,
                                .slot = slot,
                                .pass = pass,
                                .layer_steps = static_cast<int>(steps.size()),
                                .nano_batches = std::move(nano_batches)});
    return next;
  }

  const PipelineShape& shape_;
  const WeightGradients& weight_gradients_;
  int stages_;
  PipelineOrder order_;
  std::map<int, int> forward_;  // by nano-batch: its exchange
};

}  // namespace

PipelineOrder pooled_order(const PipelineShape& shape, const std::vector<Tick>& ticks,
                           const WeightGradients& weight_gradients) {
  return PooledOrder(shape, weight_gradients).make(ticks);
}

PipelineOrder at_home_order(const PipelineShape& shape, const std::vector<Tick>& ticks,
                            const WeightGradients& weight_gradients) {
  DISTCA_CHECK(shape.slots == 1, "nothing travels that the other nano-batch could hide");
  DISTCA_CHECK(shape.virtual_stages == 1 || weight_gradients.empty(), "they are not left there");
  const auto stages = static_cast<int>(shape.layers.size());
  const auto layers_of = [&](int stage, int virtual_stage) {
    return stage_of(shape, stage).layers_of(virtual_stage);
  };
  int64_t most_layers = 0;
  for (int stage = 0; stage < stages; ++stage)
    most_layers = std::max(most_layers, layers_of(stage, 0).size());
  PipelineOrder order;
  for (int i = 0; i < shape.virtual_stages * shape.nano_batches; ++i) {
    order.exchanges.push_back({.layer_steps = static_cast<int>(most_layers),
                               .nano_batches = std::vector<int>(stages, i % shape.nano_batches)});
  }
  order.visits.assign(stages + 1, std::vector<std::vector<Visit>>(1));
  for (size_t tick = 0; tick < ticks.size(); ++tick) {
    const Works works = works_of(shape, ticks[tick], /*slot=*/0);
    for (int stage = 0; stage < stages; ++stage) {
      const auto& [nano_batch, pass, virtual_stage] = works[stage];
      Visit visit{.pass = pass,
                  .tick = static_cast<int>(tick),
                  .nano_batch = nano_batch,
                  .exchange = nano_batch < 0 ? -1 : virtual_stage * shape.nano_batches + nano_batch,
                  .redispatched = pass == Pass::kBackward};
      if (nano_batch >= 0) visit.layers = layers_of(stage, virtual_stage);
      visit.p2p_ops = p2p_ops_of(works, stage, shape.virtual_stages);
      if (!weight_gradients.empty()) {
        const StageWeights& weights = weight_gradients[tick][0][stage];
        visit.leaves_weights = weights.leaves;
        visit.weight_gradients = weight_gradients_of(weights.plays, shape.layers[stage]);
      }
      order.visits[stage][0].push_back(std::move(visit));
    }
  }
  return order;
}

StagePart stage_part(const PipelineShape& shape, const PipelineOrder& order, int stage,
                     const std::vector<std::shared_ptr<const AttentionExchange>>& exchanges) {
  DISTCA_CHECK_EQ(exchanges.size(), order.exchanges.size());
  StagePart part{.stage = stage_of(shape, stage),
                 .num_nano_batches = shape.nano_batches,
                 .slots = order.visits[stage]};
  for (size_t i = 0; i < exchanges.size(); ++i)
    part.exchanges.push_back({exchanges[i], order.exchanges[i].layer_steps});
  return part;
}

P2pMessages p2p_messages(const Stage& stage, int rank, int replicas, int64_t bytes) {
  P2pMessages messages;
  const bool is_ring = stage.virtual_stages > 1;
  const int ranks = stage.count * replicas;
  if (!stage.is_first() || is_ring)
    messages.with_previous.add((rank - replicas + ranks) % ranks, bytes);
  if (!stage.is_last() || is_ring) messages.with_next.add((rank + replicas) % ranks, bytes);
  return messages;
}

}  // namespace distca
