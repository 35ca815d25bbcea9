#include "distca/program/pipeline_parts.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/parallel.h"
#include "distca/plan/pipeline/validate_pipeline.h"
#include "distca/plan/scheduler.h"

namespace distca {
namespace {

PipelineShape shape_of(const PipelineStepRequest& step) {
  return {.layers = step.layers,
          .nano_batches = static_cast<int>(step.request.nano_batches.size()),
          .slots = step.request.slots,
          .virtual_stages = step.virtual_stages};
}

std::vector<Tick> ticks_of(const PipelineStepRequest& step, int micro_batches) {
  const int stages = step.request.grid.stages;
  if (step.virtual_stages > 1) {
    DISTCA_CHECK(step.schedule == PipelineSchedule::kAtHome && step.request.trains,
                 "virtual stages in another order");
    return interleaved_ticks(stages, step.virtual_stages, micro_batches);
  }
  const bool is_aligned = step.schedule == PipelineSchedule::kAligned || !step.request.trains;
  return is_aligned ? aligned_ticks(stages, micro_batches, step.request.trains)
                    : one_forward_one_backward_ticks(stages, micro_batches);
}

}  // namespace

std::string_view schedule_name(PipelineSchedule schedule) {
  return std::ranges::find(kPipelineSchedules, schedule, &PipelineScheduleName::schedule)->name;
}

PipelineParts::PipelineParts(PipelineStepRequest request)
    : request_(std::move(request)),
      shape_(shape_of(request_)),
      ticks_(ticks_of(request_, shape_.micro_batches())) {
  DISTCA_CHECK_EQ(request_.layers.size(), static_cast<size_t>(grid().stages));
  if (request_.schedule == PipelineSchedule::kAtHome) {
    weight_gradients_ = weight_gradients_in_idle_ticks(
        ticks_, request_.request.trains ? request_.request.outstanding_weight_gradients : 0);
    order_ = at_home_order(shape_, ticks_, weight_gradients_);
    plan_at_home();
  } else {
    if (request_.schedule == PipelineSchedule::kAligned)
      aligned_ = make_pipeline_plan(request_.request);
    weight_gradients_ =
        aligned_ ? aligned_->weight_gradients : plan_weight_gradients(request_.request, ticks_);
    order_ = pooled_order(shape_, ticks_, weight_gradients_);
    plan_pooled();
  }
  indices_.resize(plans_.size());
  for_each_in_parallel(plans_.size(), request_.request.threads, [this](size_t i) {
    indices_[i] = std::make_unique<const PlanIndex>(plans_[i]);
  });
}

/// An exchange has the plan of its tick and slot, or, of layer steps that some stages lack, one
/// without these stages' rows.
void PipelineParts::plan_pooled() {
  if (aligned_) plans_ = aligned_->plans;
  std::map<std::tuple<std::vector<int>, Pass, int>, size_t> others;
  std::vector<const OrderedExchange*> of_others;  // for which they are made
  for (const OrderedExchange& exchange : order_.exchanges) {
    if (aligned_ &&
        aligned_->nano_batches_of(exchange.tick, exchange.slot) == exchange.nano_batches) {
      plan_of_.push_back(aligned_->plan_of_slot[exchange.tick][exchange.slot]);
      continue;
    }
    // The other work of ranks differs from tick to tick.
    const bool is_alone = weight_gradients_.empty() && schedule() == PipelineSchedule::kAligned;
    const auto [place, is_new] =
        others.try_emplace({exchange.nano_batches, exchange.pass, is_alone ? -1 : exchange.tick},
                           plans_.size() + of_others.size());
    if (is_new) of_others.push_back(&exchange);
    plan_of_.push_back(place->second);
  }
  const size_t before = plans_.size();
  plans_.resize(before + of_others.size());
  for_each_in_parallel(of_others.size(), request_.request.threads,
                       [&](size_t i) { plans_[before + i] = plan_alone(*of_others[i]); });
}

/// The plan of an exchange that is not one of the aligned ones.
Plan PipelineParts::plan_alone(const OrderedExchange& exchange) const {
  const std::vector<int> of_other_pass = nano_batches_of_other_pass(exchange);
  OtherWork other_work{.nano_batches = of_other_pass};
  if (!weight_gradients_.empty()) {
    const auto& of_slot = weight_gradients_[exchange.tick];
    other_work.weights = of_slot[exchange.slot];
    if (shape_.slots == 2) other_work.partner_weights = of_slot[1 - exchange.slot];
  }
  return make_slot_plan(request_.request, exchange.nano_batches, exchange.pass, other_work);
}

/// [stages] The nano-batches of stages that play the other pass in the exchange's tick and slot.
/// Empty if none does.
std::vector<int> PipelineParts::nano_batches_of_other_pass(const OrderedExchange& exchange) const {
  std::vector<int> nano_batches(grid().stages, -1);
  for (int stage = 0; stage < grid().stages; ++stage) {
    const TickStage& of = ticks_[exchange.tick].stages[stage];
    if (of.pass != exchange.pass) nano_batches[stage] = shape_.nano_batch(of, exchange.slot);
  }
  return std::ranges::max(nano_batches) < 0 ? std::vector<int>() : nano_batches;
}

void PipelineParts::plan_at_home() {
  DISTCA_CHECK_EQ(grid().dedicated, 0);  // nobody would send them anything
  PipelineRequest alone = request_.request;
  alone.fill_ticks = FillTicks::kExact;    // no stage is idle for want of work,
  alone.outstanding_weight_gradients = 0;  // and none helps another one
  const auto stages = static_cast<size_t>(grid().stages);
  std::vector<PipelineRequest> of_stage(stages, alone);  // only the stage itself serves
  for (size_t stage = 0; stage < stages; ++stage) {
    if (!find_scheduler(alone.options.scheduler).capacities) break;
    of_stage[stage].capacity.assign(grid().num_ranks(), 0);
    const std::vector<int64_t>& given = request_.request.capacity;
    for (int replica = 0; replica < grid().replicas; ++replica) {
      const int rank = grid().rank(static_cast<int>(stage), replica);
      of_stage[stage].capacity[rank] = given.empty() ? 1 : given[rank];
    }
  }
  const size_t nano_batches = request_.request.nano_batches.size();
  for (size_t i = 0; i < order_.exchanges.size(); ++i)
    plan_of_.push_back(i % nano_batches * stages);
  plans_.resize(nano_batches * stages);
  for_each_in_parallel(plans_.size(), request_.request.threads, [&](size_t i) {
    const OrderedExchange& exchange = order_.exchanges[i / stages];
    const size_t stage = i % stages;
    std::vector<int> nano_batches(stages, -1);
    nano_batches[stage] = exchange.nano_batches[stage];
    plans_[i] = make_slot_plan(of_stage[stage], nano_batches, exchange.pass);
  });
}

const Plan& PipelineParts::plan(size_t exchange, int stage) const {
  const bool own = request_.schedule == PipelineSchedule::kAtHome;
  return plans_[plan_of_[exchange] + (own ? stage : 0)];
}

std::string PipelineParts::hash() const {
  std::vector<std::string> hashes(plans_.size());
  for_each_in_parallel(plans_.size(), request_.request.threads,
                       [&](size_t i) { hashes[i] = plan_hash(plans_[i]); });
  std::string text;
  for (const std::string& of_plan : hashes) text += of_plan + "\n";
  for (const Tick& tick : ticks_) {
    for (const TickStage& stage : tick.stages)
      text += fmt::format("{}{} ", pass_name(stage.pass)[0], stage.micro_batch);
  }
  if (request_.virtual_stages > 1) text += fmt::format("virtual {}", request_.virtual_stages);
  for (const auto& tick : weight_gradients_) {
    for (const std::vector<StageWeights>& slot : tick) {
      for (const StageWeights& stage : slot) {
        text += stage.leaves ? "l" : "-";
        for (const int nano : stage.plays) text += fmt::format("{} ", nano);
      }
    }
  }
  for (size_t i = 0; i < order_.exchanges.size(); ++i)
    text += fmt::format("\n{} {}", plan_of_[i], order_.exchanges[i].layer_steps);
  return hash_hex(text);
}

std::vector<std::string> PipelineParts::violations(const ValidateOptions& options) const {
  std::vector<std::string> all =
      aligned_ ? validate(*aligned_, options)
               : weight_gradient_violations(
                     ticks_, weight_gradients_,
                     {.slots = shape_.slots,
                      .nano_batches = shape_.nano_batches,
                      .outstanding = request_.request.outstanding_weight_gradients});
  ValidateOptions of_rest = options;
  of_rest.even_tokens = false;  // idle stages hold none
  for (size_t i = aligned_ ? aligned_->plans.size() : 0; i < plans_.size(); ++i) {
    std::ranges::move(validate(plans_[i], of_rest), std::back_inserter(all));
  }
  return all;
}

StagePart PipelineParts::part(int server, const Format& format) const {
  const int stage = grid().stage(server) >= 0 ? grid().stage(server) : grid().stages;
  const bool own = request_.schedule == PipelineSchedule::kAtHome;
  std::map<size_t, std::shared_ptr<const AttentionExchange>> known;  // by plan
  std::vector<std::shared_ptr<const AttentionExchange>> parts;
  for (const size_t first : plan_of_) {
    auto& part = known[first];
    if (part == nullptr) {
      part = std::make_shared<const AttentionExchange>(
          make_attention_exchange(indices_[first + (own ? stage : 0)]->exchange(server),
                                  request_.request.shape, format.types));
    }
    parts.push_back(part);
  }
  StagePart made = stage_part(shape_, order_, stage, parts);
  made.stage.tensor = format.tensor;
  if (stage == grid().stages) return made;
  for (const Layout& home : request_.request.homes) {
    const Range rows = format.tensor.part(home.num_tokens(grid().replica(server)));
    made.p2p_messages.push_back(
        p2p_messages(made.stage, server, grid().replicas, rows.size() * format.row_bytes));
  }
  return made;
}

}  // namespace distca
