#include "distca/plan/pipeline/weight_gradients.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "distca/base/error.h"
#include "distca/cost/finish_time.h"
#include "distca/plan/pipeline/pipeline_plan.h"

namespace distca {
namespace {

/// Forward and backward of a load of core attention, in sevenths of both.
constexpr std::array<int64_t, 2> kSevenths{2, 5};
constexpr int kMostRounds = 3;
/// In backward ticks of a stage, the most between what it leaves and plays: the time to plan grows
/// with the number of micro-batches, and not with its square.
constexpr size_t kMostReach = 64;
__extension__ using Wide = __int128;

/// Plans one slot. Slots are played in turn, and a tick is as long as all of them together.
class SlotWeights {
 public:
  SlotWeights(const PipelineRequest& request, std::span<const Tick> ticks, int slot)
      : request_(request), stages_(request.grid.stages), slot_(slot) {
    backward_.assign(stages_, {});
    weights_ps_.assign(stages_, std::vector<int64_t>(request.nano_batches.size(), 0));
    for (int stage = 0; stage < stages_; ++stage) {
      for (size_t nano = slot; nano < request.nano_batches.size(); nano += request.slots)
        weights_ps_[stage][nano] = weights_ps_of(stage, static_cast<int>(nano));
      least_gain_ps_ = std::max(least_gain_ps_, std::ranges::max(weights_ps_[stage]) / 1000);
    }
    set_servers();
    for (const Tick& tick : ticks) add_tick(tick);
    now_.played.assign(stages_, std::vector<int64_t>(request.nano_batches.size(), -1));
    now_.length.resize(ticks.size());
    for (size_t tick = 0; tick < ticks_.size(); ++tick) set_length(tick);
  }

  /// [ticks][stages]
  std::vector<std::vector<StageWeights>> plan() {
    const Decisions none = now_;
    Decisions best = now_;
    for (const size_t first_reach : {size_t{1}, size_t{2}, size_t{4}, kMostReach}) {
      now_ = none;
      reach_ = std::min(kMostReach,
                        first_reach * static_cast<size_t>(request_.outstanding_weight_gradients));
      improve();
      reach_ = kMostReach;
      improve();
      if (now_.total < best.total) best = now_;
    }
    return std::move(best.weights);
  }

 private:
  struct SlotTick {
    std::vector<int> nano_batches;   // [stages] -1 where there is none
    std::vector<bool> is_backward;   // [stages] plays backward of its nano-batch
    std::vector<int64_t> linear_ps;  // [stages] with weight gradients
    int64_t load_sevenths = 0;       // core attention of one replica of each stage
    int64_t attention_ps = 0;        // the time that it would take on one rank
    bool is_played() const { return std::ranges::max(nano_batches) >= 0; }
  };
  /// The length of a tick, or of all. The shorter one is better, then the one with less linear work
  /// beyond the mean.
  struct Length {
    int64_t ps = 0, beyond_ps = 0;
    auto operator<=>(const Length&) const = default;
  };
  struct Decisions {
    std::vector<std::vector<StageWeights>> weights;  // [ticks][stages]
    std::vector<std::vector<int64_t>> played;        // [stages][nano-batches] tick, or -1
    std::vector<Length> length;                      // [ticks] with these decisions
    Length total;
  };
  /// A decision that a change has replaced.
  struct Replaced {
    size_t tick;
    int stage;
    StageWeights weights;
    int nano;  // whose `played` was replaced, too
    int64_t played;
  };

  int nano_batch(const TickStage& stage) const {
    const int nano = stage.micro_batch * request_.slots + slot_;
    return stage.micro_batch >= 0 && nano < std::ssize(request_.nano_batches) ? nano : -1;
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

  void add_tick(const Tick& tick) {
    SlotTick made{.linear_ps = std::vector<int64_t>(stages_, 0)};
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      std::vector<int> of_pass(stages_, -1);
      for (int stage = 0; stage < stages_; ++stage) {
        if (tick.stages[stage].pass == pass) of_pass[stage] = nano_batch(tick.stages[stage]);
      }
      made.load_sevenths += slot_load(request_, of_pass) / request_.grid.replicas *
                            kSevenths[static_cast<size_t>(pass)];
      const std::vector<RankWork> work = slot_work(request_, of_pass, pass);
      for (int stage = 0; stage < stages_; ++stage) made.linear_ps[stage] += slowest(work, stage);
    }
    made.attention_ps =
        static_cast<int64_t>(Wide{servers_[0].attention_ps_per_kload} * made.load_sevenths / 1000);
    for (int stage = 0; stage < stages_; ++stage) {
      const int nano = nano_batch(tick.stages[stage]);
      const bool is_backward = nano >= 0 && tick.stages[stage].pass == Pass::kBackward;
      made.nano_batches.push_back(nano);
      made.is_backward.push_back(is_backward);
      if (is_backward) backward_[stage].push_back(ticks_.size());
    }
    ticks_.push_back(std::move(made));
    now_.weights.emplace_back(stages_);
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

  Length length_of(size_t tick) {
    const SlotTick& of = ticks_[tick];
    int64_t all_ps = of.attention_ps;
    for (int stage = 0; stage < stages_; ++stage) {
      const StageWeights& weights = now_.weights[tick][stage];
      int64_t& linear = servers_[stage].other_ps;
      linear = of.linear_ps[stage];
      if (weights.leaves) linear -= weights_ps_[stage][of.nano_batches[stage]];
      for (const int nano : weights.plays) linear += weights_ps_[stage][nano];
      all_ps += linear;
    }
    Length length{.ps = least_ps(servers_, request_.balance_target, of.load_sevenths)};
    const int64_t mean = all_ps / std::ssize(servers_);
    for (int stage = 0; stage < stages_; ++stage)
      length.beyond_ps += std::max<int64_t>(0, servers_[stage].other_ps - mean);
    return length;
  }
  void set_length(size_t tick) {
    const Length length = length_of(tick);
    now_.total.ps += length.ps - now_.length[tick].ps;
    now_.total.beyond_ps += length.beyond_ps - now_.length[tick].beyond_ps;
    now_.length[tick] = length;
  }

  void improve() {
    for (int round = 0; round < kMostRounds; ++round) {
      const Length before = now_.total;
      for (size_t tick = 0; tick < ticks_.size(); ++tick) decide(tick);
      if (now_.total == before) break;
    }
  }

  /// Decides what is left in this tick, and when it is played.
  void decide(size_t tick) {
    std::vector<int> new_ones;
    for (int stage = 0; stage < stages_; ++stage) {
      if (!ticks_[tick].is_backward[stage]) continue;
      if (!now_.weights[tick][stage].leaves) {
        new_ones.push_back(stage);
      } else if (!keep_if_better([&] { return take_back(tick, stage) && leave(tick, stage); })) {
        keep_if_better([&] { return take_back(tick, stage); });
      }
    }
    const auto leave_all = [&] {
      return std::ranges::all_of(new_ones, [&](int stage) { return leave(tick, stage); });
    };
    if (new_ones.empty() || keep_if_better(leave_all) || new_ones.size() == 1) return;
    for (const int stage : new_ones) keep_if_better([&] { return leave(tick, stage); });
  }

  /// Lengths of ticks are whole picoseconds, so a sum of them may get shorter by rounding alone.
  bool is_better(const Length& now, const Length& before) const {
    return now.ps + least_gain_ps_ < before.ps ||
           (now.ps <= before.ps && now.beyond_ps + least_gain_ps_ < before.beyond_ps);
  }
  /// Makes a change, and takes it back unless it can be made and is for the better.
  template <typename Change>
  bool keep_if_better(const Change& change) {
    const Length before = now_.total;
    replaced_.clear();
    if (change() && is_better(now_.total, before)) return true;
    for (auto one = replaced_.rbegin(); one != replaced_.rend(); ++one) {
      now_.weights[one->tick][one->stage] = one->weights;
      now_.played[one->stage][one->nano] = one->played;
    }
    for (const Replaced& one : replaced_) set_length(one.tick);
    return false;
  }
  /// To be called before what a stage does in this tick, or when it plays this nano-batch, changes.
  void will_change(size_t tick, int stage, int nano) {
    replaced_.push_back({tick, stage, now_.weights[tick][stage], nano, now_.played[stage][nano]});
  }

  /// Nano-batches of a stage whose weight gradients are left in this tick or earlier, and are not
  /// played before it.
  int outstanding(int64_t tick, int stage) const {
    int count = 0;
    for (const size_t left : backward_[stage]) {
      if (static_cast<int64_t>(left) > tick) break;
      if (!now_.weights[left][stage].leaves) continue;
      const int64_t played = now_.played[stage][ticks_[left].nano_batches[stage]];
      count += played < 0 || played >= tick ? 1 : 0;
    }
    return count;
  }

  /// A stage leaves its weight gradients, and plays them where that prolongs a tick least. Returns
  /// false if they cannot be.
  bool leave(size_t tick, int stage) {
    const int nano = ticks_[tick].nano_batches[stage];
    will_change(tick, stage, nano);
    now_.weights[tick][stage].leaves = true;
    set_length(tick);
    const int most = request_.outstanding_weight_gradients;
    if (outstanding(static_cast<int64_t>(tick), stage) > most) return false;
    Length best{.ps = std::numeric_limits<int64_t>::max()};
    int64_t where = -1;
    const std::vector<size_t>& own = backward_[stage];
    const size_t next =
        static_cast<size_t>(std::ranges::lower_bound(own, tick) - own.begin()) + reach_;
    const size_t end = next < own.size() ? own[next] : ticks_.size();
    for (size_t other = tick + 1; other < end; ++other) {
      const bool leaves = now_.weights[other][stage].leaves;
      if (leaves && outstanding(static_cast<int64_t>(other), stage) > most) break;
      if (!ticks_[other].is_played()) continue;
      std::vector<int>& plays = now_.weights[other][stage].plays;
      plays.push_back(nano);
      Length longer = length_of(other);
      plays.pop_back();
      longer.ps -= now_.length[other].ps;
      longer.beyond_ps -= now_.length[other].beyond_ps;
      if (longer >= best) continue;
      best = longer;
      where = static_cast<int64_t>(other);
    }
    if (where < 0) return false;
    will_change(where, stage, nano);
    now_.weights[where][stage].plays.push_back(nano);
    now_.played[stage][nano] = where;
    set_length(where);
    return true;
  }
  bool take_back(size_t tick, int stage) {
    const int nano = ticks_[tick].nano_batches[stage];
    const int64_t played = now_.played[stage][nano];
    will_change(tick, stage, nano);
    will_change(played, stage, nano);
    now_.weights[tick][stage].leaves = false;
    std::erase(now_.weights[played][stage].plays, nano);
    now_.played[stage][nano] = -1;
    set_length(tick);
    set_length(played);
    return true;
  }

  const PipelineRequest& request_;
  const int stages_, slot_;
  std::vector<SlotTick> ticks_;
  /// [stages][nano-batches] The gradients by matrices of all layers of the stage.
  std::vector<std::vector<int64_t>> weights_ps_;
  int64_t least_gain_ps_ = 0;  // a thousandth of the weight gradients of a stage and nano-batch
  std::vector<std::vector<size_t>> backward_;  // [stages] ticks of its backward, in order
  std::vector<RankWork> servers_;              // [stages], then dedicated servers
  Decisions now_;
  std::vector<Replaced> replaced_;
  size_t reach_ = 0;  // backward ticks of the stage before which what it leaves must be played
};

}  // namespace

WeightGradients plan_weight_gradients(const PipelineRequest& request, std::span<const Tick> ticks) {
  DISTCA_CHECK_GE(request.outstanding_weight_gradients, 0);
  if (request.grid.stages == 1 || request.outstanding_weight_gradients == 0 || !request.trains ||
      request.speeds.empty())
    return {};
  WeightGradients all(ticks.size());
  bool leaves = false;
  for (int slot = 0; slot < request.slots; ++slot) {
    std::vector<std::vector<StageWeights>> of_slot = SlotWeights(request, ticks, slot).plan();
    for (size_t tick = 0; tick < ticks.size(); ++tick) {
      leaves |= std::ranges::any_of(of_slot[tick], &StageWeights::leaves);
      all[tick].push_back(std::move(of_slot[tick]));
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
