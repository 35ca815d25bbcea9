#include "distca/plan/pipeline/weight_gradients.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "distca/base/error.h"
#include "distca/cost/finish_time.h"
#include "distca/plan/pipeline/pipeline_plan.h"

namespace distca {
namespace {

/// Forward and backward of a load of core attention, in sevenths of both.
constexpr std::array<int64_t, 2> kSevenths{2, 5};
/// The most micro-batches whose weight gradients a stage plays in a tick.
constexpr int kMostPlays = 3;
constexpr int kMostRounds = 3;
constexpr int kMean = -2;  // in place of a micro-batch: one with the mean weight gradients
__extension__ using Wide = __int128;
constexpr Wide kNoWay = Wide{1} << 120;

/// The weights of the length of a tick and of the linear work beyond the ranks' mean.
struct Weighing {
  int64_t length, beyond;
};
/// Stages are decided one at a time. Where two of them make a tick long, neither gains by leaving
/// anything alone, so linear work beyond the mean counts, too, and at first or now and then more
/// than lengths. Neither way to go on is always the better one.
constexpr std::array kFirstWay{Weighing{1, 1000}, Weighing{1, 1}, Weighing{4, 1}, Weighing{256, 1}};
constexpr std::array kSecondWay{Weighing{3, 1}, Weighing{1, 1}, Weighing{3, 1}, Weighing{1, 1},
                                Weighing{256, 1}};

/// Plans by micro-batches, so that the slots of a tick stay alike. They are played in turn and
/// evened each by itself, so a tick is as long as all of them together.
class MicroBatchWeights {
 public:
  MicroBatchWeights(const PipelineRequest& request, std::span<const Tick> ticks)
      : request_(request), stages_(request.grid.stages), ticks_(ticks) {
    const auto count = static_cast<int>(request.nano_batches.size());
    for (int stage = 0; stage < stages_; ++stage) {
      std::vector<int64_t>& of_stage = weights_ps_.emplace_back();
      for (int nano = 0; nano < count; ++nano) of_stage.push_back(weights_ps_of(stage, nano));
      mean_weights_ps_.push_back(std::reduce(of_stage.begin(), of_stage.end()) / count);
      least_gain_ps_ = std::max(least_gain_ps_, std::ranges::max(of_stage) * request.slots / 1000);
    }
    set_servers();
    for (const Tick& tick : ticks) {
      std::vector<SlotWork>& slots = work_.emplace_back();
      for (int slot = 0; slot < request_.slots; ++slot) slots.push_back(slot_work_of(tick, slot));
      now_.weights.emplace_back(stages_);
    }
    now_.length.resize(ticks.size());
    for (size_t tick = 0; tick < ticks_.size(); ++tick) set_length(tick);
  }

  /// [ticks][stages], by micro-batches.
  std::vector<std::vector<StageWeights>> plan() {
    const Decisions none = now_;
    Decisions best = now_;
    for (const std::span<const Weighing> way :
         {std::span<const Weighing>(kFirstWay), std::span<const Weighing>(kSecondWay)}) {
      now_ = none;
      for (const Weighing& weighing : way) {
        for (int round = 0; round < kMostRounds; ++round) {
          const Length before = now_.total;
          for (int i = 0; i < stages_; ++i) decide(round % 2 > 0 ? i : stages_ - 1 - i, weighing);
          if (is_better(now_.total, best.total)) best = now_;
          if (now_.total == before) break;
        }
      }
    }
    return std::move(best.weights);
  }

 private:
  struct SlotWork {
    std::vector<int64_t> linear_ps;  // [stages] with weight gradients
    int64_t load_sevenths = 0;       // core attention of one replica of each stage
    int64_t attention_ps = 0;        // the time that it would take on one rank
  };
  /// The length of a tick, or of all. The shorter one is better, then the one with less linear work
  /// beyond the mean.
  struct Length {
    int64_t ps = 0, beyond_ps = 0;
    auto operator<=>(const Length&) const = default;
  };
  struct Decisions {
    std::vector<std::vector<StageWeights>> weights;  // [ticks][stages]
    std::vector<Length> length;                      // [ticks] with these decisions
    Length total;
  };
  /// The work of a stage in a tick, on the best way to so many outstanding micro-batches behind it.
  struct Choice {
    Wide cost = kNoWay;  // sum of all ticks so far
    int before = 0;      // outstanding micro-batches before the tick
    int plays = 0;
    bool leaves = false;
  };

  int nano_batch(int micro_batch, int slot) const {
    const int nano = micro_batch * request_.slots + slot;
    return micro_batch >= 0 && nano < std::ssize(request_.nano_batches) ? nano : -1;
  }

  /// A rank for each stage, with the mean speed of its replicas, and dedicated servers, of which a
  /// replica of each stage has its share.
  void set_servers() {
    const int64_t replicas = request_.grid.replicas;
    for (int stage = 0; stage < stages_; ++stage) {
      int64_t attention = 0;
      for (int replica = 0; replica < replicas; ++replica)
        attention += request_.speeds[request_.grid.rank(stage, replica)].attention_ps_per_kload;
      servers_.push_back({.attention_ps_per_kload = std::max<int64_t>(1, attention / 7 / replicas),
                          .serves = request_.in_place || request_.grid.dedicated == 0});
    }
    for (int rank = request_.grid.num_workers(); rank < request_.grid.num_ranks(); ++rank) {
      const int64_t attention = request_.speeds[rank].attention_ps_per_kload * replicas;
      servers_.push_back({.attention_ps_per_kload = std::max<int64_t>(1, attention / 7)});
    }
  }

  /// Returns true if some stage has a nano-batch in each slot, so that all ranks visit the slot.
  /// Where the last micro-batch has a slot less, a tick that it has alone plays nothing.
  bool is_played(const Tick& tick) const {
    const int64_t slots = std::min<int64_t>(request_.slots, std::ssize(request_.nano_batches));
    for (int slot = 0; slot < slots; ++slot) {
      const auto has_one = [&](int micro_batch) { return nano_batch(micro_batch, slot) >= 0; };
      if (std::ranges::none_of(tick.stages, has_one, &TickStage::micro_batch)) return false;
    }
    return true;
  }
  /// Returns true if the stage plays backward of a micro-batch.
  static bool is_backward(const TickStage& stage) {
    return stage.micro_batch >= 0 && stage.pass == Pass::kBackward;
  }

  SlotWork slot_work_of(const Tick& tick, int slot) const {
    SlotWork made{.linear_ps = std::vector<int64_t>(stages_, 0)};
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      std::vector<int> of_pass(stages_, -1);
      for (int stage = 0; stage < stages_; ++stage) {
        const TickStage& own = tick.stages[stage];
        if (own.pass == pass) of_pass[stage] = nano_batch(own.micro_batch, slot);
      }
      made.load_sevenths += slot_load(request_, of_pass) / request_.grid.replicas *
                            kSevenths[static_cast<size_t>(pass)];
      const std::vector<RankWork> work = slot_work(request_, of_pass, pass);
      for (int stage = 0; stage < stages_; ++stage) made.linear_ps[stage] += slowest(work, stage);
    }
    made.attention_ps =
        static_cast<int64_t>(Wide{servers_[0].attention_ps_per_kload} * made.load_sevenths / 1000);
    return made;
  }

  int64_t slowest(std::span<const RankWork> work, int stage) const {
    double longest = 0;
    for (int replica = 0; replica < request_.grid.replicas; ++replica)
      longest = std::max(longest, linear_ps(work[request_.grid.rank(stage, replica)]));
    return static_cast<int64_t>(longest);
  }

  int64_t weights_ps_of(int stage, int nano) const {
    std::vector<int> alone(stages_, -1);
    alone[stage] = nano;
    std::vector<StageWeights> left(stages_);
    left[stage].leaves = true;
    return slowest(slot_work(request_, alone, Pass::kBackward), stage) -
           slowest(slot_work(request_, alone, Pass::kBackward, {.weights = left}), stage);
  }

  /// The weight gradients of a micro-batch's nano-batch in a slot, or of a mean one for kMean.
  int64_t weights_ps(int stage, int micro_batch, int slot) const {
    if (micro_batch == kMean) return mean_weights_ps_[stage];
    const int nano = nano_batch(micro_batch, slot);
    return nano < 0 ? 0 : weights_ps_[stage][nano];
  }
  Length length_of(size_t tick) {
    Length all;
    for (int slot = 0; slot < request_.slots; ++slot) {
      const SlotWork& of = work_[tick][slot];
      int64_t all_ps = of.attention_ps;
      for (int stage = 0; stage < stages_; ++stage) {
        const StageWeights& weights = now_.weights[tick][stage];
        int64_t& linear = servers_[stage].other_ps;
        linear = of.linear_ps[stage];
        if (weights.leaves)
          linear -= weights_ps(stage, ticks_[tick].stages[stage].micro_batch, slot);
        for (const int micro_batch : weights.plays) linear += weights_ps(stage, micro_batch, slot);
        all_ps += linear;
      }
      all.ps += least_ps(servers_, request_.balance_target, of.load_sevenths);
      const int64_t mean = all_ps / std::ssize(servers_);
      for (int stage = 0; stage < stages_; ++stage)
        all.beyond_ps += std::max<int64_t>(0, servers_[stage].other_ps - mean);
    }
    return all;
  }
  void set_length(size_t tick) {
    const Length length = length_of(tick);
    now_.total.ps += length.ps - now_.length[tick].ps;
    now_.total.beyond_ps += length.beyond_ps - now_.length[tick].beyond_ps;
    now_.length[tick] = length;
  }

  /// Lengths of ticks are whole picoseconds, so a sum of them may get shorter by rounding alone.
  bool is_better(const Length& now, const Length& before) const {
    return now.ps + least_gain_ps_ < before.ps ||
           (now.ps <= before.ps && now.beyond_ps + least_gain_ps_ < before.beyond_ps);
  }

  /// Decides anew what a stage leaves and plays: the best for it as long as the others stay. What
  /// is left first is played first.
  void decide(int stage, const Weighing& weighing) {
    for (std::vector<StageWeights>& tick : now_.weights) tick[stage] = {};
    const std::vector<std::vector<Choice>> choices = choices_of(stage, weighing);
    std::vector<Choice> chosen(ticks_.size());
    int outstanding = 0;
    for (size_t tick = ticks_.size(); tick-- > 0;) {
      chosen[tick] = choices[tick][outstanding];
      outstanding = chosen[tick].before;
    }
    std::vector<int> left;
    auto next = size_t{0};
    for (size_t tick = 0; tick < ticks_.size(); ++tick) {
      StageWeights& weights = now_.weights[tick][stage];
      for (int i = 0; i < chosen[tick].plays; ++i) weights.plays.push_back(left[next++]);
      weights.leaves = chosen[tick].leaves;
      if (weights.leaves) left.push_back(ticks_[tick].stages[stage].micro_batch);
      set_length(tick);
    }
  }

  /// [ticks][outstanding micro-batches behind it] What is played counts with the mean of the
  /// stage's nano-batches.
  std::vector<std::vector<Choice>> choices_of(int stage, const Weighing& weighing) {
    const int64_t backward = std::ranges::count_if(
        ticks_, [&](const Tick& tick) { return is_backward(tick.stages[stage]); });
    const auto most =
        static_cast<int>(std::min<int64_t>(request_.outstanding_weight_gradients, backward));
    std::vector<std::vector<Choice>> choices(ticks_.size(), std::vector<Choice>(most + 1));
    std::vector<Choice> before(most + 1);
    before[0].cost = 0;
    for (size_t tick = 0; tick < ticks_.size(); ++tick) {
      const int most_plays = is_played(ticks_[tick]) ? std::min(most, kMostPlays) : 0;
      for (const bool leaves : {false, true}) {
        if (leaves && !is_backward(ticks_[tick].stages[stage])) continue;
        for (int plays = 0; plays <= most_plays; ++plays) {
          const Wide cost = cost_of(tick, stage, leaves, plays, weighing);
          for (int held = plays; held + (leaves ? 1 : 0) <= most; ++held) {
            if (before[held].cost == kNoWay) continue;
            Choice& choice = choices[tick][held + (leaves ? 1 : 0) - plays];
            if (before[held].cost + cost >= choice.cost) continue;
            choice = {
                .cost = before[held].cost + cost, .before = held, .plays = plays, .leaves = leaves};
          }
        }
      }
      before = choices[tick];
    }
    return choices;
  }

  Wide cost_of(size_t tick, int stage, bool leaves, int plays, const Weighing& weighing) {
    StageWeights& weights = now_.weights[tick][stage];
    weights = {.leaves = leaves, .plays = std::vector<int>(plays, kMean)};
    const Length length = length_of(tick);
    weights = {};
    return Wide{weighing.length} * (length.ps + (leaves ? least_gain_ps_ : 0)) +
           Wide{weighing.beyond} * length.beyond_ps;
  }

  const PipelineRequest& request_;
  const int stages_;
  const std::span<const Tick> ticks_;
  std::vector<std::vector<SlotWork>> work_;  // [ticks][slots]
  /// [stages][nano-batches] The gradients by matrices of all layers of the stage.
  std::vector<std::vector<int64_t>> weights_ps_;
  std::vector<int64_t> mean_weights_ps_;  // [stages]
  int64_t least_gain_ps_ = 0;  // a thousandth of the weight gradients of a stage and micro-batch
  std::vector<RankWork> servers_;  // [stages], then dedicated servers
  Decisions now_;
};

}  // namespace

bool lets_weights_wait(const PipelineRequest& request) {
  return request.trains && request.grid.stages > 1 && request.outstanding_weight_gradients > 0 &&
         !request.speeds.empty() && std::ranges::all_of(request.speeds, [](const RankSpeed& speed) {
           return speed.attention_ps_per_kload > 0;
         });
}

WeightGradients plan_weight_gradients(const PipelineRequest& request, std::span<const Tick> ticks) {
  DISTCA_CHECK_GE(request.outstanding_weight_gradients, 0);
  if (!lets_weights_wait(request)) return {};
  const std::vector<std::vector<StageWeights>> planned = MicroBatchWeights(request, ticks).plan();
  const auto nano_batches = static_cast<int>(request.nano_batches.size());
  WeightGradients all(ticks.size());
  bool leaves = false;
  for (size_t tick = 0; tick < ticks.size(); ++tick) {
    for (int slot = 0; slot < request.slots; ++slot) {
      std::vector<StageWeights>& of_slot = all[tick].emplace_back(planned[tick]);
      for (size_t stage = 0; stage < of_slot.size(); ++stage) {
        const auto nano_of = [&](int micro_batch) { return micro_batch * request.slots + slot; };
        StageWeights& weights = of_slot[stage];
        weights.leaves &= nano_of(ticks[tick].stages[stage].micro_batch) < nano_batches;
        for (int& played : weights.plays) played = nano_of(played);
        std::erase_if(weights.plays, [&](int nano) { return nano >= nano_batches; });
        leaves |= weights.leaves;
      }
    }
  }
  return leaves ? all : WeightGradients{};
}

WeightGradients weight_gradients_in_idle_ticks(std::span<const Tick> ticks, int outstanding) {
  if (ticks.empty() || outstanding == 0) return {};
  const size_t stages = ticks[0].stages.size();
  WeightGradients all(ticks.size(), {std::vector<StageWeights>(stages)});
  bool leaves = false;
  for (size_t stage = 0; stage < stages; ++stage) {
    std::vector<size_t> left;  // ticks of the last backwards whose weight gradients may be left
    for (size_t tick = 0; tick < ticks.size(); ++tick) {
      const TickStage& own = ticks[tick].stages[stage];
      if (own.micro_batch < 0 && !left.empty()) {
        all[left.front()][0][stage].leaves = leaves = true;
        all[tick][0][stage].plays = {ticks[left.front()].stages[stage].micro_batch};
        left.erase(left.begin());
      } else if (own.micro_batch >= 0 && own.pass == Pass::kBackward) {
        // Only what is played is left: without an idle tick until then, an earlier one is not.
        if (std::ssize(left) == outstanding) left.erase(left.begin());
        left.push_back(tick);
      }
    }
  }
  return leaves ? all : WeightGradients{};
}

int most_outstanding(const WeightGradients& weights, int stage) {
  int64_t now = 0, most = 0;
  for (const auto& tick : weights) {
    for (const auto& slot : tick) now += slot[stage].leaves ? 1 : 0;
    most = std::max(most, now);
    for (const auto& slot : tick) now -= std::ssize(slot[stage].plays);
  }
  return static_cast<int>(most);
}

}  // namespace distca
