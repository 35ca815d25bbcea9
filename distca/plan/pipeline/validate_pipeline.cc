#include "distca/plan/pipeline/validate_pipeline.h"

#include <algorithm>
#include <set>
#include <utility>

#include "distca/plan/validate_parts.h"

namespace distca {
namespace {

constexpr int kNever = -1;

/// The nano-batch in a slot of a micro-batch, or -1 if there is none.
int64_t nano_of(int micro_batch, int slot, const WeightGradientBounds& step) {
  const int64_t nano = int64_t{micro_batch} * step.slots + slot;
  return micro_batch >= 0 && nano < step.nano_batches ? nano : -1;
}

class PipelineValidator : Violations {
 public:
  PipelineValidator(const PipelinePlan& plan, const ValidateOptions& options)
      : Violations(options.max_violations),
        plan_(plan),
        options_(options),
        bounds_{.slots = plan.slots,
                .nano_batches = static_cast<int>(plan.nano_batches.size()),
                .outstanding = plan.outstanding_weight_gradients} {}

  std::vector<std::string> run() {
    if (shapes_right()) {
      find_ticks();
      check_order();
      check_memory();
      check_weight_gradients();
      check_homes();
      check_slots();
      check_plans();
    }
    return std::move(*this).lines();
  }

 private:
  int stages() const { return plan_.grid.stages; }

  bool shapes_right() {
    const Grid& grid = plan_.grid;
    if (grid.stages < 1 || grid.replicas < 1 || grid.dedicated < 0) {
      report("{} stages of {} replicas, {} dedicated servers", grid.stages, grid.replicas,
             grid.dedicated);
    }
    if (plan_.slots < 1 || plan_.slots > 2) report("{} slots, not 1 or 2", plan_.slots);
    if (plan_.nano_batches.empty()) report("there is no nano-batch");
    if (plan_.homes.size() != plan_.nano_batches.size()) {
      report("{} layouts for {} nano-batches", plan_.homes.size(), plan_.nano_batches.size());
    }
    if (plan_.plan_of_slot.size() != plan_.ticks.size()) {
      report("plans of {} ticks, there are {}", plan_.plan_of_slot.size(), plan_.ticks.size());
    }
    if (!none()) return false;
    micro_batches_ =
        static_cast<int>(ceil_div(static_cast<int64_t>(plan_.nano_batches.size()), plan_.slots));
    for (size_t tick = 0; tick < plan_.ticks.size(); ++tick) {
      if (plan_.ticks[tick].stages.size() != static_cast<size_t>(stages()))
        report("tick {}: {} stages, not {}", tick, plan_.ticks[tick].stages.size(), stages());
      if (plan_.plan_of_slot[tick].size() != static_cast<size_t>(plan_.slots))
        report("tick {}: {} slots, not {}", tick, plan_.plan_of_slot[tick].size(), plan_.slots);
    }
    return none();
  }

  /// When each stage plays each micro-batch: once.
  void find_ticks() {
    forward_.assign(stages(), std::vector<int>(micro_batches_, kNever));
    backward_ = forward_;
    for (int tick = 0; tick < static_cast<int>(plan_.ticks.size()); ++tick) {
      for (int stage = 0; stage < stages(); ++stage) {
        const TickStage& own = plan_.ticks[tick].stages[stage];
        if (own.micro_batch == -1) continue;
        if (own.micro_batch < 0 || own.micro_batch >= micro_batches_) {
          report("tick {}: stage {} has micro-batch {}, there are {}", tick, stage, own.micro_batch,
                 micro_batches_);
          continue;
        }
        const bool forward = own.pass == Pass::kForward;
        int& played = (forward ? forward_ : backward_)[stage][own.micro_batch];
        if (played != kNever || (!forward && !plan_.trains)) {
          report("tick {}: {} of micro-batch {} on stage {} {}", tick,
                 forward ? "forward" : "backward", own.micro_batch, stage,
                 played != kNever ? "for the second time" : "in an evaluation");
        }
        played = tick;
      }
    }
  }

  void check_order() {
    for (int stage = 0; stage < stages(); ++stage) {
      for (int micro = 0; micro < micro_batches_; ++micro) {
        const int forward = forward_[stage][micro], backward = backward_[stage][micro];
        if (forward == kNever) report("stage {} has no forward of micro-batch {}", stage, micro);
        if (stage > 0 && forward <= forward_[stage - 1][micro]) {
          report("forward of micro-batch {}: tick {} on stage {} is not after stage {}'s", micro,
                 forward, stage, stage - 1);
        }
        if (!plan_.trains) continue;
        if (backward == kNever) report("stage {} has no backward of micro-batch {}", stage, micro);
        if (backward <= forward) {
          report("micro-batch {} on stage {}: backward in tick {} is not after forward in tick {}",
                 micro, stage, backward, forward);
        }
        if (stage + 1 < stages() && backward <= backward_[stage + 1][micro]) {
          report("backward of micro-batch {}: tick {} on stage {} is not after stage {}'s", micro,
                 backward, stage, stage + 1);
        }
      }
    }
  }

  /// A micro-batch is held from its forward tick until its backward tick, both included.
  void check_memory() {
    if (!plan_.trains || !none()) return;
    for (int stage = 0; stage < stages(); ++stage) {
      const int most = std::min(micro_batches_, 2 * (stages() - 1 - stage) + 1);
      for (int tick = 0; tick < static_cast<int>(plan_.ticks.size()); ++tick) {
        int held = 0;
        for (int micro = 0; micro < micro_batches_; ++micro) {
          held += forward_[stage][micro] <= tick && tick <= backward_[stage][micro] ? 1 : 0;
        }
        if (held <= most) continue;
        report("tick {}: stage {} holds {} micro-batches, at most {} in the aligned order", tick,
               stage, held, most);
        break;
      }
    }
  }

  void check_weight_gradients() {
    if (!none()) return;
    for (const std::string& line :
         weight_gradient_violations(plan_.ticks, plan_.weight_gradients, bounds_))
      report("{}", line);
  }

  void check_homes() {
    for (size_t nano = 0; nano < plan_.homes.size(); ++nano) {
      const Layout& home = plan_.homes[nano];
      const int64_t replicas = plan_.grid.replicas;
      if (home.num_workers() != replicas) {
        report("the layout of nano-batch {} has {} workers, a stage has {}", nano,
               home.num_workers(), replicas);
        continue;
      }
      if (!options_.even_tokens) continue;
      const int64_t total = plan_.nano_batches[nano].num_tokens();
      for (int replica = 0; replica < replicas; ++replica) {
        const int64_t tokens = home.num_tokens(replica);
        if (std::abs(tokens * replicas - total) < 128 * replicas) continue;
        report("nano-batch {}: replica {} holds {} of {} tokens: not within 128 of the mean", nano,
               replica, tokens, total);
      }
    }
  }

  int64_t nano_at(int tick, int stage, int slot) const {
    return nano_of(plan_.ticks[tick].stages[stage].micro_batch, slot, bounds_);
  }

  void check_slots() {
    used_.assign(plan_.plans.size(), false);
    for (int tick = 0; tick < static_cast<int>(plan_.ticks.size()); ++tick) {
      for (int slot = 0; slot < plan_.slots; ++slot) check_slot(tick, slot);
    }
    for (size_t index = 0; index < used_.size(); ++index) {
      if (!used_[index]) report("plan {} is used in no tick", index);
    }
  }

  void check_slot(int tick, int slot) {
    bool works = false;
    for (int stage = 0; stage < stages(); ++stage) works |= nano_at(tick, stage, slot) >= 0;
    const int index = plan_.plan_of_slot[tick][slot];
    if (index == -1 && !works) return;
    if (index < 0 || index >= static_cast<int>(plan_.plans.size()) || !works) {
      report("tick {} slot {}: plan {} of {}{}", tick, slot, index, plan_.plans.size(),
             works ? "" : ", no stage has a nano-batch there");
      return;
    }
    used_[index] = true;
    const Plan& plan = plan_.plans[index];
    if (plan.layout.num_workers() != plan_.grid.num_workers()) {
      report("tick {} slot {}: a layout of {} workers, the grid has {}", tick, slot,
             plan.layout.num_workers(), plan_.grid.num_workers());
      return;
    }
    size_t next = 0;  // document of the plan
    for (int stage = 0; stage < stages(); ++stage) {
      const int64_t nano = nano_at(tick, stage, slot);
      check_rows(tick, slot, stage, nano, static_cast<int64_t>(next));
      if (nano < 0) continue;
      for (const Document& document : plan_.nano_batches[nano].documents) {
        const auto& documents = plan.nano_batch.documents;
        if (next >= documents.size() || documents[next].length != document.length) {
          report("tick {} slot {}: document {} of the plan is not document {} of nano-batch {}",
                 tick, slot, next, document.id, nano);
          return;
        }
        ++next;
      }
    }
    if (next != plan.nano_batch.documents.size()) {
      report("tick {} slot {}: the plan has {} documents, the stages' nano-batches {}", tick, slot,
             plan.nano_batch.documents.size(), next);
    }
  }

  /// The rows of a stage's workers in a plan in which its documents begin with `first`.
  void check_rows(int tick, int slot, int stage, int64_t nano, int64_t first) {
    const Plan& plan = plan_.plans[plan_.plan_of_slot[tick][slot]];
    for (int replica = 0; replica < plan_.grid.replicas; ++replica) {
      const int rank = stage * plan_.grid.replicas + replica;
      const std::vector<Segment>& rows = plan.layout.workers[rank];
      if (nano < 0) {
        if (!rows.empty()) {
          report("tick {} slot {}: worker {} of stage {} holds tokens, the stage has no nano-batch",
                 tick, slot, rank, stage);
        }
        continue;
      }
      if (plan_.homes[nano].num_workers() <= replica) continue;  // was reported
      const std::vector<Segment>& home = plan_.homes[nano].workers[replica];
      const bool same = std::ranges::equal(rows, home, [first](const Segment& a, const Segment& b) {
        return a.document == first + b.document && a.tokens == b.tokens;
      });
      if (!same) {
        report(
            "tick {} slot {}: worker {} of stage {} does not hold the rows of nano-batch {} in "
            "their layout",
            tick, slot, rank, stage, nano);
      }
    }
  }

  void check_plans() {
    for (size_t index = 0; index < plan_.plans.size(); ++index) {
      const Plan& plan = plan_.plans[index];
      const int workers = plan_.grid.stages * plan_.grid.replicas;
      if (plan.cluster.num_workers != workers ||
          plan.cluster.num_servers() != workers + plan_.grid.dedicated) {
        report("plan {} is for {} workers and {} servers, the grid has {} and {}", index,
               plan.cluster.num_workers, plan.cluster.num_servers(), workers,
               workers + plan_.grid.dedicated);
      }
      ValidateOptions own = options_;
      own.even_tokens = false;
      for (const std::string& line : validate(plan, own)) report("plan {}: {}", index, line);
    }
  }

  const PipelinePlan& plan_;
  const ValidateOptions& options_;
  const WeightGradientBounds bounds_;
  int micro_batches_ = 0;
  std::vector<std::vector<int>> forward_, backward_;  // [stages][micro-batches] the tick
  std::vector<bool> used_;                            // [plans]
};

class WeightGradientValidator : Violations {
 public:
  WeightGradientValidator(std::span<const Tick> ticks, const WeightGradients& weights,
                          const WeightGradientBounds& bounds)
      : Violations(ValidateOptions().max_violations),
        ticks_(ticks),
        weights_(weights),
        bounds_(bounds) {}

  std::vector<std::string> run() {
    if (weights_.size() != ticks_.size())
      report("weight gradients of {} ticks, there are {}", weights_.size(), ticks_.size());
    for (size_t tick = 0; tick < std::min(weights_.size(), ticks_.size()); ++tick) {
      const size_t stages = ticks_[tick].stages.size();
      const bool fits = weights_[tick].size() == static_cast<size_t>(bounds_.slots) &&
                        std::ranges::all_of(weights_[tick], [stages](const auto& slot) {
                          return slot.size() == stages;
                        });
      if (!fits) report("tick {}: weight gradients of other slots or stages", tick);
    }
    if (!none()) return std::move(*this).lines();
    for (int stage = 0; stage < std::ssize(ticks_[0].stages); ++stage) {
      for (int slot = 0; slot < bounds_.slots; ++slot) check(stage, slot);
    }
    return std::move(*this).lines();
  }

 private:
  /// Weight gradients of one stage in one slot. They are outstanding from their backward tick until
  /// the tick in which they are played, both included.
  void check(int stage, int slot) {
    std::set<int64_t> left;
    for (int tick = 0; tick < static_cast<int>(ticks_.size()); ++tick) {
      const StageWeights& weights = weights_[tick][slot][stage];
      const TickStage& own = ticks_[tick].stages[stage];
      const int64_t nano = nano_of(own.micro_batch, slot, bounds_);
      if (weights.leaves && (nano < 0 || own.pass == Pass::kForward)) {
        report("tick {} slot {}: stage {} leaves weight gradients without backward", tick, slot,
               stage);
      } else if (weights.leaves) {
        left.insert(nano);
      }
      if (weights.leaves && std::ssize(left) > bounds_.outstanding) {
        report("tick {} slot {}: stage {} has left weight gradients of {} nano-batches, not {}",
               tick, slot, stage, left.size(), bounds_.outstanding);
      }
      for (const int played : weights.plays) {
        if (left.erase(played) > 0 && played != nano) continue;
        report(
            "tick {} slot {}: stage {} plays weight gradients of nano-batch {}, which it has not "
            "left before",
            tick, slot, stage, played);
      }
    }
    for (const int64_t nano : left) {
      report("slot {}: stage {} never plays the weight gradients of nano-batch {}", slot, stage,
             nano);
    }
  }

  std::span<const Tick> ticks_;
  const WeightGradients& weights_;
  const WeightGradientBounds& bounds_;
};

}  // namespace

std::vector<std::string> validate(const PipelinePlan& plan, const ValidateOptions& options) {
  return PipelineValidator(plan, options).run();
}

std::vector<std::string> weight_gradient_violations(std::span<const Tick> ticks,
                                                    const WeightGradients& weights,
                                                    const WeightGradientBounds& bounds) {
  if (weights.empty()) return {};
  return WeightGradientValidator(ticks, weights, bounds).run();
}

}  // namespace distca
