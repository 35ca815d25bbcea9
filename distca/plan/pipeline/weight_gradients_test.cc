#include "distca/plan/pipeline/weight_gradients.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "distca/plan/pipeline/pipeline_testing.h"
#include "distca/plan/pipeline/pipeline_time.h"
#include "distca/plan/pipeline/validate_pipeline.h"

namespace distca {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

PipelineRequest request_of(int stages, int micro_batches, double share, int outstanding,
                           int replicas = 1, int dedicated = 0) {
  Random random(31, static_cast<uint64_t>(stages * 100 + micro_batches));
  std::vector<std::vector<int64_t>> nano_batches;
  for (int i = 0; i < 2 * micro_batches; ++i)
    nano_batches.push_back(testing::many_lengths(16'384 * replicas, random));
  PipelineRequest request = testing::pipeline_request(
      {.stages = stages, .replicas = replicas, .dedicated = dedicated}, 2, nano_batches);
  testing::set_attention_share(request, share);
  request.layer_steps = 4;
  request.outstanding_weight_gradients = outstanding;
  return request;
}

/// The step over the time for which ranks are busy, as planned.
double over_busy(const PipelineRequest& request, const PipelinePlan& plan) {
  double step = 0, busy = 0;
  for (const TickFigures& tick : tick_figures(request, plan))
    step += static_cast<double>(tick.planned_ps);
  const RankSpeed& speed = request.speeds[0];
  for (const NanoBatch& nano : request.nano_batches) {
    for (const Document& document : nano.documents) {
      const auto length = static_cast<double>(document.length);
      busy += length * static_cast<double>(speed.linear_ps_per_token) +
              length * (length + 1) / 2000 * static_cast<double>(speed.attention_ps_per_kload);
    }
  }
  return step / (busy / request.grid.replicas);
}

TEST(WeightGradients, that_wait_fill_what_stages_would_wait_for) {
  struct Row {
    int stages, micro_batches;
    double share;                // core attention's, in all work
    std::array<double, 3> most;  // [outstanding] the step over its busy time
  };
  for (const Row& row :
       {Row{2, 4, .40, {1.050, 1.015, 1.015}}, Row{4, 8, .25, {1.190, 1.105, 1.070}},
        Row{4, 8, .40, {1.105, 1.050, 1.035}}, Row{4, 8, .60, {1.045, 1.015, 1.015}},
        Row{8, 16, .40, {1.145, 1.080, 1.070}}}) {
    for (int outstanding = 0; outstanding <= 2; ++outstanding) {
      const PipelineRequest request =
          request_of(row.stages, row.micro_batches, row.share, outstanding);
      const PipelinePlan plan = make_pipeline_plan(request);
      EXPECT_THAT(validate(plan), IsEmpty());
      EXPECT_EQ(plan.weight_gradients.empty(), outstanding == 0);
      const double step = over_busy(request, plan);
      fmt::print("{} stages, {} micro-batches, attention {:.2f}, {} outstanding: {:.4f}\n",
                 row.stages, row.micro_batches, row.share, outstanding, step);
      EXPECT_LE(step, row.most[outstanding]);
    }
  }
}

/// Three does not divide the picoseconds of weight gradients, so that sums of whole ones differ.
TEST(WeightGradients, none_wait_for_what_rounding_gains) {
  const PipelineRequest request = request_of(3, 12, .25, 1);
  int leave = 0;
  for (const auto& tick : plan_weight_gradients(request, aligned_ticks(3, 12, /*trains=*/true))) {
    for (const auto& slot : tick)
      leave += static_cast<int>(std::ranges::count_if(slot, &StageWeights::leaves));
  }
  EXPECT_LE(leave, 16);
}

TEST(WeightGradients, none_wait_without_a_pipeline_speeds_or_a_bound) {
  PipelineRequest request = request_of(2, 4, .4, 1);
  const std::vector<Tick> ticks = aligned_ticks(2, 4, /*trains=*/true);
  EXPECT_THAT(plan_weight_gradients(request, ticks), Not(IsEmpty()));
  request.outstanding_weight_gradients = 0;
  EXPECT_THAT(plan_weight_gradients(request, ticks), IsEmpty());
  const PipelinePlan plan = make_pipeline_plan(request);
  request.outstanding_weight_gradients = 1;
  PipelineRequest other = request;
  other.trains = false;
  EXPECT_THAT(plan_weight_gradients(other, aligned_ticks(2, 4, false)), IsEmpty());
  other = request;
  other.speeds.clear();
  EXPECT_THAT(plan_weight_gradients(other, ticks), IsEmpty());
  EXPECT_THAT(plan_weight_gradients(request_of(1, 4, .4, 1), aligned_ticks(1, 4, true)), IsEmpty());
}

/// Where replicas and dedicated servers share the work, and linear work is that of full
/// recomputation, plans are valid and no longer than without.
TEST(WeightGradients, wait_with_replicas_dedicated_servers_and_recomputation) {
  for (const int dedicated : {0, 2}) {
    for (const int64_t products_again : {0, 1}) {
      double before = 0;
      for (const int outstanding : {0, 1, 3}) {
        PipelineRequest request = request_of(3, 5, .4, outstanding, /*replicas=*/2, dedicated);
        request.products_again = products_again;
        const PipelinePlan plan = make_pipeline_plan(request);
        EXPECT_THAT(validate(plan), IsEmpty());
        double step = 0;
        for (const TickFigures& tick : tick_figures(request, plan))
          step += static_cast<double>(tick.planned_ps);
        if (before > 0) {
          EXPECT_LT(step, before) << outstanding;
        }
        before = step;
      }
    }
  }
}

/// The last micro-batch has one nano-batch: nobody visits the other slot of ticks that it has
/// alone.
TEST(WeightGradients, are_played_where_a_slot_has_a_nano_batch) {
  PipelineRequest request = request_of(4, 3, .4, 2);
  request.nano_batches.pop_back();
  request.homes.pop_back();
  const PipelinePlan plan = make_pipeline_plan(request);
  EXPECT_THAT(validate(plan), IsEmpty());
  ASSERT_FALSE(plan.weight_gradients.empty());
  PipelineRequest one = request;  // no tick has the other slot
  one.nano_batches.resize(1);
  one.homes.resize(1);
  EXPECT_THAT(make_pipeline_plan(one).weight_gradients, Not(IsEmpty()));
  for (int tick = 0; tick < static_cast<int>(plan.ticks.size()); ++tick) {
    for (int slot = 0; slot < 2; ++slot) {
      const bool plays = std::ranges::any_of(
          plan.weights_of(tick, slot), [](const auto& stage) { return !stage.plays.empty(); });
      EXPECT_TRUE(!plays || plan.plan_of_slot[tick][slot] >= 0) << tick << ", " << slot;
    }
  }
}

TEST(WeightGradients, damage_is_found) {
  const PipelineRequest request = request_of(3, 4, .4, 1);
  const PipelinePlan plan = make_pipeline_plan(request);
  size_t leaves = 0, plays = 0;  // ticks in which the last stage does so in slot 0 first
  const auto of = [](PipelinePlan& of_plan, size_t tick) -> StageWeights& {
    return of_plan.weight_gradients[tick][0][2];
  };
  PipelinePlan whole = plan;
  while (!of(whole, leaves).leaves) ++leaves;
  while (of(whole, plays).plays.empty()) ++plays;
  const auto faults = [&](const std::function<void(PipelinePlan&)>& spoil) {
    PipelinePlan spoilt = plan;
    spoil(spoilt);
    return fmt::format("{}", fmt::join(validate(spoilt), "\n"));
  };
  EXPECT_THAT(faults([&](PipelinePlan& p) { of(p, plays).plays.clear(); }),
              HasSubstr("never plays"));
  EXPECT_THAT(faults([&](PipelinePlan& p) { of(p, leaves).leaves = false; }),
              HasSubstr("which it has not left before"));
  EXPECT_THAT(faults([&](PipelinePlan& p) { of(p, 0).leaves = true; }),
              HasSubstr("leaves weight gradients without backward"));
  EXPECT_THAT(faults([&](PipelinePlan& p) { p.outstanding_weight_gradients = 0; }),
              HasSubstr("has left weight gradients of 1 nano-batches, not 0"));
  EXPECT_THAT(faults([&](PipelinePlan& p) {
                of(p, leaves).plays = of(p, plays).plays;
                of(p, plays).plays.clear();
              }),
              HasSubstr("which it has not left before"));
  EXPECT_THAT(faults([&](PipelinePlan& p) { p.weight_gradients.pop_back(); }),
              HasSubstr("weight gradients of"));
}

TEST(WeightGradients, at_home_they_fill_ticks_without_a_micro_batch) {
  const std::vector<Tick> ticks = one_forward_one_backward_ticks(3, 4);
  const WeightGradients weights = weight_gradients_in_idle_ticks(ticks, 2);
  int left = 0, played = 0;
  for (size_t tick = 0; tick < ticks.size(); ++tick) {
    for (size_t stage = 0; stage < 3; ++stage) {
      const StageWeights& of = weights[tick][0][stage];
      left += of.leaves ? 1 : 0;
      played += static_cast<int>(of.plays.size());
      if (!of.plays.empty()) {
        EXPECT_EQ(ticks[tick].stages[stage].micro_batch, -1);
      }
    }
  }
  EXPECT_GT(left, 3);
  EXPECT_EQ(left, played);
  EXPECT_THAT(weight_gradients_in_idle_ticks(ticks, 0), IsEmpty());
}

}  // namespace
}  // namespace distca
