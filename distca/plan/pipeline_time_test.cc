#include "distca/plan/pipeline_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/plan/pipeline_testing.h"

namespace distca {
namespace {

using testing::pipeline_request;
using testing::set_attention_share;

/// Of the nano-batches with these indices: tokens and pairs.
struct Amount {
  double tokens = 0, pairs = 0;
};
Amount amount_of(const PipelineRequest& request, int micro_batch, int first_slot, int last_slot) {
  Amount amount;
  for (int slot = first_slot; slot <= last_slot && micro_batch >= 0; ++slot) {
    for (const Document& document :
         request.nano_batches[micro_batch * request.slots + slot].documents) {
      const auto length = static_cast<double>(document.length);
      amount.tokens += length;
      amount.pairs += length * (length + 1) / 2;
    }
  }
  return amount;
}

/// The closed form of the tick model, of these slots together. With n of the stages at work for l
/// each and attention A: max(l, (n l + A) / P'), or with attention evened alone l + A / P'.
double closed_form(const PipelineRequest& request, const Tick& tick, Pass pass, int first_slot,
                   int last_slot) {
  const RankSpeed& speed = request.speeds[0];
  const double linear_ps =
      static_cast<double>(speed.linear_ps_per_token) * (pass == Pass::kForward ? 1. / 3 : 2. / 3);
  const double attention_ps = static_cast<double>(speed.attention_ps_per_kload) / 1000 *
                              (pass == Pass::kForward ? 2. / 7 : 5. / 7);
  const auto replicas = static_cast<double>(request.grid.replicas);
  const double stages = static_cast<double>(request.grid.num_ranks()) / replicas;
  double longest = 0, all_linear = 0, attention = 0;
  for (const TickStage& stage : tick.stages) {
    const Amount amount = amount_of(request, stage.micro_batch, first_slot, last_slot);
    const double linear = linear_ps * amount.tokens / replicas;
    longest = std::max(longest, linear);
    all_linear += linear;
    attention += attention_ps * amount.pairs / replicas;
  }
  return request.evenness == Evenness::kWhole ? std::max(longest, (all_linear + attention) / stages)
                                              : longest + attention / stages;
}

struct Case {
  int stages, micro_batches, replicas, dedicated;
  double share;
  Evenness evenness;
};

class TickLengths : public ::testing::TestWithParam<Case> {};

PipelineRequest request_of(const Case& one) {
  Random random(29, static_cast<uint64_t>(one.stages * 100 + one.micro_batches));
  std::vector<std::vector<int64_t>> nano_batches;
  for (int i = 0; i < 2 * one.micro_batches; ++i)
    nano_batches.push_back(testing::many_lengths(16'384 * one.replicas, random));
  PipelineRequest request =
      pipeline_request({.stages = one.stages, .replicas = one.replicas, .dedicated = one.dedicated},
                       2, nano_batches);
  set_attention_share(request, one.share);
  request.evenness = one.evenness;
  return request;
}

TEST_P(TickLengths, are_near_the_closed_form) {
  const PipelineRequest request = request_of(GetParam());
  const PipelinePlan plan = make_pipeline_plan(request);
  const std::vector<TickFigures> figures = tick_figures(request, plan);
  ASSERT_EQ(figures.size(), plan.ticks.size());
  double planned = 0, ideal = 0;
  for (size_t tick = 0; tick < figures.size(); ++tick) {
    const auto closed = [&](int first_slot, int last_slot) {
      return closed_form(request, plan.ticks[tick], figures[tick].pass, first_slot, last_slot);
    };
    const double by_slot = closed(0, 0) + closed(1, 1);
    EXPECT_NEAR(static_cast<double>(figures[tick].ideal_ps), by_slot, 1e-3 * by_slot);
    EXPECT_GE(figures[tick].over_ideal(), 0.998) << "tick " << tick;
    EXPECT_LE(figures[tick].over_ideal(), 1.03) << "tick " << tick;
    EXPECT_EQ(figures[tick].working, plan.ticks[tick].num_working());
    planned += static_cast<double>(figures[tick].planned_ps);
    ideal += closed(0, 1);  // of whole micro-batches
  }
  EXPECT_LE(planned, 1.03 * ideal);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int stages : {2, 4}) {
    for (const int times : {2, 4}) {
      for (const double share : {.25, .4, .6}) {
        for (const Evenness evenness : {Evenness::kWhole, Evenness::kAttention}) {
          const bool more = share == .4 && times == 2;
          all.push_back({stages, times * stages, more ? 2 : 1, more ? 1 : 0, share, evenness});
        }
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(all, TickLengths, ::testing::ValuesIn(cases()), [](const auto& info) {
  const Case& one = info.param;
  return fmt::format("P{}_M{}_D{}_dedicated{}_share{:.0f}_{}", one.stages, one.micro_batches,
                     one.replicas, one.dedicated, 100 * one.share,
                     one.evenness == Evenness::kWhole ? "whole" : "attention");
});

TEST(TickFigures, of_an_idle_second_slot_count_the_first_alone) {
  PipelineRequest request =
      pipeline_request({.stages = 2, .replicas = 1}, 2, {{8192}, {8192}, {8192}});
  set_attention_share(request, 0.5);
  const PipelinePlan plan = make_pipeline_plan(request);
  const std::vector<TickFigures> figures = tick_figures(request, plan);
  EXPECT_EQ(figures[0].load, 2 * figures[3].load);  // F0: micro-batch 0 on stage 0; F2: 1 on 1
  EXPECT_EQ(figures[3].working, 1);
  EXPECT_GT(figures[0].bytes, figures[0].max_send_bytes);
}

/// The ticks in which one of two stages has nothing to do.
std::vector<TickFigures> fill_ticks(const PipelineRequest& request) {
  std::vector<TickFigures> fills;
  for (const TickFigures& tick : tick_figures(request, make_pipeline_plan(request))) {
    if (tick.working == 1) fills.push_back(tick);
  }
  return fills;
}

TEST(fill_ticks, send_less_where_their_exchanges_would_not_hide_and_last_longer_for_it) {
  PipelineRequest request = request_of({.stages = 2,
                                        .micro_batches = 3,
                                        .replicas = 4,
                                        .dedicated = 0,
                                        .share = .6,
                                        .evenness = Evenness::kWhole});
  request.layer_steps = 8;
  const std::vector<TickFigures> plain = fill_ticks(request);
  ASSERT_EQ(plain.size(), 4u);
  EXPECT_EQ(plain[0].exchange_ps, 0);
  // A fast wire changes nothing; a slow one takes four times as long as what the first tick
  // computes.
  request.bytes_per_us = 1'000'000;
  const std::vector<TickFigures> fast = fill_ticks(request);
  const double slower =
      4.0 * static_cast<double>(fast[0].planned_ps) / static_cast<double>(fast[0].exchange_ps);
  request.bytes_per_us = static_cast<int64_t>(1'000'000 / slower);
  const std::vector<TickFigures> weighed = fill_ticks(request);
  int raised = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(fast[i].planned_ps, plain[i].planned_ps) << i;
    const double before = slower * static_cast<double>(fast[i].exchange_ps);
    if (before < 1.5 * static_cast<double>(plain[i].planned_ps)) continue;
    ++raised;
    EXPECT_LT(weighed[i].bytes, plain[i].bytes) << i;
    EXPECT_GT(weighed[i].planned_ps, plain[i].planned_ps) << i;
    EXPECT_LT(static_cast<double>(std::max(weighed[i].planned_ps, weighed[i].exchange_ps)),
              .95 * before)
        << i;
  }
  EXPECT_GE(raised, 2);
  // A plan of one slot is the one that the step has.
  const Plan alone = make_slot_plan(request, std::vector{0, -1}, Pass::kForward);
  EXPECT_EQ(plan_hash(alone), plan_hash(make_pipeline_plan(request).plans[0]));
}

}  // namespace
}  // namespace distca
