#include "distca/plan/pipeline/validate_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "distca/plan/pipeline/pipeline_testing.h"

namespace distca {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Three stages of two workers and a dedicated server, four micro-batches; the last has one
/// nano-batch.
PipelinePlan good_plan() {
  return make_pipeline_plan(testing::pipeline_request(
      {.stages = 3, .replicas = 2, .dedicated = 1}, 2,
      {{3000, 500}, {2048}, {300, 300, 1500}, {2500}, {1800, 77}, {640, 1300}, {2222}}));
}

struct PipelineDamage {
  const char* name;
  const char* reported;
  std::function<void(PipelinePlan&)> inflict;
};
void PrintTo(const PipelineDamage& damage, std::ostream* out) { *out << damage.name; }

class BrokenPipeline : public ::testing::TestWithParam<PipelineDamage> {};

TEST_P(BrokenPipeline, is_reported) {
  PipelinePlan plan = good_plan();
  ASSERT_THAT(validate(plan), IsEmpty());
  GetParam().inflict(plan);
  EXPECT_THAT(validate(plan), Contains(HasSubstr(GetParam().reported)));
}

/// Ticks are F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5.
constexpr int kF0 = 0, kF2 = 2, kB0 = 3, kF3 = 4, kB1 = 5, kF4 = 6, kB2 = 7, kF5 = 8;

void swap_ticks(PipelinePlan& plan, int a, int b) {
  std::swap(plan.ticks[a], plan.ticks[b]);
  std::swap(plan.plan_of_slot[a], plan.plan_of_slot[b]);
}
TickStage& stage_of(PipelinePlan& plan, int tick, int stage) {
  return plan.ticks[tick].stages[stage];
}
Plan& plan_at(PipelinePlan& plan, int tick, int slot = 0) {
  return plan.plans[plan.plan_of_slot[tick][slot]];
}

const PipelineDamage kPipelineDamages[] = {
    // The shape of it all.
    {"no_stage", "0 stages of 2 replicas", [](PipelinePlan& plan) { plan.grid.stages = 0; }},
    {"three_slots", "3 slots, not 1 or 2", [](PipelinePlan& plan) { plan.slots = 3; }},
    {"no_nano_batch", "there is no nano-batch",
     [](PipelinePlan& plan) { plan.nano_batches.clear(); }},
    {"layout_missing", "6 layouts for 7 nano-batches",
     [](PipelinePlan& plan) { plan.homes.pop_back(); }},
    {"slots_of_a_tick_missing", "plans of 11 ticks, there are 12",
     [](PipelinePlan& plan) { plan.plan_of_slot.pop_back(); }},
    {"stage_missing_in_a_tick", "tick 3: 2 stages, not 3",
     [](PipelinePlan& plan) { plan.ticks[kB0].stages.pop_back(); }},
    {"slot_missing_in_a_tick", "tick 3: 1 slots, not 2",
     [](PipelinePlan& plan) { plan.plan_of_slot[kB0].pop_back(); }},
    // Each once.
    {"forward_dropped", "stage 1 has no forward of micro-batch 1",
     [](PipelinePlan& plan) { stage_of(plan, kF2, 1).micro_batch = -1; }},
    {"backward_dropped", "stage 2 has no backward of micro-batch 0",
     [](PipelinePlan& plan) { stage_of(plan, kB0, 2).micro_batch = -1; }},
    {"forward_twice", "tick 4: forward of micro-batch 1 on stage 1 for the second time",
     [](PipelinePlan& plan) { stage_of(plan, kF3, 1).micro_batch = 1; }},
    {"backward_twice", "tick 5: backward of micro-batch 0 on stage 2 for the second time",
     [](PipelinePlan& plan) { stage_of(plan, kB1, 2).micro_batch = 0; }},
    {"wrong_pass", "stage 0 has no forward of micro-batch 2",
     [](PipelinePlan& plan) { stage_of(plan, kF2, 0).pass = Pass::kBackward; }},
    {"unknown_micro_batch", "stage 0 has micro-batch 4, there are 4",
     [](PipelinePlan& plan) { stage_of(plan, kF4, 0).micro_batch = 4; }},
    {"negative_micro_batch", "stage 0 has micro-batch -2",
     [](PipelinePlan& plan) { stage_of(plan, kF4, 0).micro_batch = -2; }},
    {"backward_in_an_evaluation", "in an evaluation",
     [](PipelinePlan& plan) { plan.trains = false; }},
    // In order.
    {"stage_before_its_input", "forward of micro-batch 0: tick 0 on stage 1 is not after stage 0's",
     [](PipelinePlan& plan) { swap_ticks(plan, 0, 1); }},
    {"stages_in_the_same_tick",
     "forward of micro-batch 0: tick 0 on stage 1 is not after stage 0's",
     [](PipelinePlan& plan) { std::swap(stage_of(plan, 0, 1), stage_of(plan, 1, 1)); }},
    {"backward_before_forward", "micro-batch 0 on stage 2: backward in tick 2 is not after forward",
     [](PipelinePlan& plan) { swap_ticks(plan, kF2, kB0); }},
    {"backward_up_the_pipeline",
     "backward of micro-batch 0: tick 5 on stage 0 is not after stage 1's",
     [](PipelinePlan& plan) { swap_ticks(plan, kB1, kB2); }},
    {"too_many_in_flight", "stage 2 holds 2 micro-batches, at most 1",
     [](PipelinePlan& plan) { swap_ticks(plan, kB0, kF3); }},
    // One layout a nano-batch, rows where they belong.
    {"layout_of_too_few_workers", "the layout of nano-batch 3 has 1 workers, a stage has 2",
     [](PipelinePlan& plan) { plan.homes[3].workers.pop_back(); }},
    {"other_layout_in_all_ticks", "does not hold the rows of nano-batch 1 in their layout",
     [](PipelinePlan& plan) { std::swap(plan.homes[1].workers[0], plan.homes[1].workers[1]); }},
    {"other_layout_in_one_tick", "tick 3 slot 0: worker 4 of stage 2 does not hold the rows",
     [](PipelinePlan& plan) {
       auto& workers = plan_at(plan, kB0).layout.workers;
       std::swap(workers[4], workers[5]);
     }},
    {"rows_on_another_stage", "worker 1 of stage 0 holds tokens, the stage has no nano-batch",
     [](PipelinePlan& plan) {
       auto& workers = plan_at(plan, kB0).layout.workers;
       std::swap(workers[1], workers[5]);
     }},
    {"rows_on_another_replica", "worker 0 of stage 0 does not hold the rows",
     [](PipelinePlan& plan) {
       auto& workers = plan_at(plan, kF0).layout.workers;
       workers[1].push_back(workers[0].back());
       workers[0].pop_back();
     }},
    {"rows_in_another_order", "worker 0 of stage 0 does not hold the rows",
     [](PipelinePlan& plan) {
       auto& rows = plan_at(plan, kF2).layout.workers[0];
       if (rows.size() > 1) std::swap(rows.front(), rows.back());
       if (rows.size() == 1) rows.clear();
     }},
    {"uneven_layout", "not within 128 of the mean",
     [](PipelinePlan& plan) {
       auto& workers = plan.homes[2].workers;
       workers[0].insert(workers[0].end(), workers[1].begin(), workers[1].end());
       workers[1].clear();
     }},
    // The right plan in each slot.
    {"no_plan", "tick 2 slot 1: plan -1 of",
     [](PipelinePlan& plan) { plan.plan_of_slot[kF2][1] = -1; }},
    {"unknown_plan", "tick 2 slot 1: plan 99 of",
     [](PipelinePlan& plan) { plan.plan_of_slot[kF2][1] = 99; }},
    {"plan_of_another_tick", "tick 2 slot 1: ",
     [](PipelinePlan& plan) { plan.plan_of_slot[kF2][1] = plan.plan_of_slot[kF3][1]; }},
    {"plan_of_the_other_slot", "tick 2 slot 0: ",
     [](PipelinePlan& plan) { std::swap(plan.plan_of_slot[kF2][0], plan.plan_of_slot[kF2][1]); }},
    {"plan_in_an_idle_slot", "no stage has a nano-batch there",
     [](PipelinePlan& plan) { plan.plan_of_slot[kF5][1] = 0; }},
    {"plan_that_nobody_uses", "is used in no tick",
     [](PipelinePlan& plan) { plan.plans.push_back(plan.plans[0]); }},
    {"document_of_another_length", "document 0 of the plan is not document 0 of nano-batch 0",
     [](PipelinePlan& plan) { plan.nano_batches[0].documents[0].length += 128; }},
    {"document_too_many", "the plan has 2 documents, the stages' nano-batches 1",
     [](PipelinePlan& plan) { plan.nano_batches[0].documents.pop_back(); }},
    {"layout_of_another_grid", "a layout of 7 workers, the grid has 6",
     [](PipelinePlan& plan) { plan_at(plan, kF0).layout.workers.emplace_back(); }},
    {"server_too_many", "is for 6 workers and 8 servers, the grid has 6 and 7",
     [](PipelinePlan& plan) { plan_at(plan, kF0).cluster.capacity.push_back(1); }},
    {"other_grid", "a layout of 6 workers, the grid has 3",
     [](PipelinePlan& plan) { plan.grid.replicas = 1; }},
    // Valid plans.
    {"task_dropped", "computed by no task",
     [](PipelinePlan& plan) { plan_at(plan, kB2).tasks.pop_back(); }},
    {"load_misstated", "plan 0: ", [](PipelinePlan& plan) { plan.plans[0].load[0].pairs += 1; }},
};

INSTANTIATE_TEST_SUITE_P(all, BrokenPipeline, ::testing::ValuesIn(kPipelineDamages),
                         [](const auto& info) { return std::string(info.param.name); });

/// Lockstep 1F1B: neighbours in opposite passes, and no more than stages - stage in flight.
TEST(ValidatePipeline, allows_a_mixed_order) {
  PipelinePlan plan = make_pipeline_plan(
      testing::pipeline_request({.stages = 2, .replicas = 1}, 1, {{1000}, {700}, {512}}));
  const auto forward = [](int micro_batch) { return TickStage{micro_batch, Pass::kForward}; };
  const auto backward = [](int micro_batch) { return TickStage{micro_batch, Pass::kBackward}; };
  const TickStage none;
  std::vector<Tick> mixed{{{forward(0), none}},        {{forward(1), forward(0)}},
                          {{none, backward(0)}},       {{backward(0), forward(1)}},
                          {{forward(2), backward(1)}}, {{backward(1), forward(2)}},
                          {{none, backward(2)}},       {{backward(2), none}}};
  std::vector<Plan> plans;
  std::vector<std::vector<int>> plan_of_slot;
  for (const Tick& tick : mixed) {
    const auto same = [&tick](const Tick& other) {
      return other.stages[0].micro_batch == tick.stages[0].micro_batch &&
             other.stages[1].micro_batch == tick.stages[1].micro_batch;
    };
    const auto found = std::ranges::find_if(plan.ticks, same);
    ASSERT_NE(found, plan.ticks.end());
    plans.push_back(plan.plans[plan.plan_of_slot[found - plan.ticks.begin()][0]]);
    plan_of_slot.push_back({static_cast<int>(plan_of_slot.size())});
  }
  plan.ticks = mixed;
  plan.plans = plans;
  plan.plan_of_slot = plan_of_slot;
  EXPECT_THAT(validate(plan), IsEmpty());
  EXPECT_EQ(most_in_flight(plan.ticks, 0), 2);
  EXPECT_EQ(most_in_flight(plan.ticks, 1), 1);
}

}  // namespace
}  // namespace distca
