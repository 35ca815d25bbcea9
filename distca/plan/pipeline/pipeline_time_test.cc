#include "distca/plan/pipeline/pipeline_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/plan/pipeline/pipeline_testing.h"

namespace distca {
namespace {

using testing::pipeline_request;
using testing::set_attention_share;

/// The tokens and pairs of a micro-batch's nano-batches in these slots.
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
  return request.balance_target == BalanceTarget::kWhole
             ? std::max(longest, (all_linear + attention) / stages)
             : longest + attention / stages;
}

struct TimeCase {
  int stages, micro_batches, replicas, dedicated;
  double share;
  BalanceTarget balance_target;
};

class TickLengths : public ::testing::TestWithParam<TimeCase> {};

PipelineRequest request_of(const TimeCase& one) {
  Random random(29, static_cast<uint64_t>(one.stages * 100 + one.micro_batches));
  std::vector<std::vector<int64_t>> nano_batches;
  for (int i = 0; i < 2 * one.micro_batches; ++i)
    nano_batches.push_back(testing::many_lengths(16'384 * one.replicas, random));
  PipelineRequest request =
      pipeline_request({.stages = one.stages, .replicas = one.replicas, .dedicated = one.dedicated},
                       2, nano_batches);
  set_attention_share(request, one.share);
  request.balance_target = one.balance_target;
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
    ideal += closed(0, 1);  // ideal time of whole micro-batches
  }
  EXPECT_LE(planned, 1.03 * ideal);
}

std::vector<TimeCase> cases() {
  std::vector<TimeCase> all;
  for (const int stages : {2, 4}) {
    for (const int times : {2, 4}) {
      for (const double share : {.25, .4, .6}) {
        for (const BalanceTarget balance_target :
             {BalanceTarget::kWhole, BalanceTarget::kAttention}) {
          const bool more = share == .4 && times == 2;
          all.push_back(
              {stages, times * stages, more ? 2 : 1, more ? 1 : 0, share, balance_target});
        }
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(all, TickLengths, ::testing::ValuesIn(cases()), [](const auto& info) {
  const TimeCase& one = info.param;
  return fmt::format("P{}_M{}_D{}_dedicated{}_share{:.0f}_{}", one.stages, one.micro_batches,
                     one.replicas, one.dedicated, 100 * one.share,
                     one.balance_target == BalanceTarget::kWhole ? "whole" : "attention");
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

/// Two stages, many documents.
PipelineRequest two_stages(int replicas, double share) {
  PipelineRequest request = request_of({.stages = 2,
                                        .micro_batches = 3,
                                        .replicas = replicas,
                                        .dedicated = 0,
                                        .share = share,
                                        .balance_target = BalanceTarget::kWhole});
  request.layer_steps = 8;
  return request;
}

TEST(SlotTime, is_that_of_a_chain_of_linear_work_messages_and_attention_where_it_is_longest) {
  PipelineRequest request = two_stages(1, .6);
  const std::vector<int> nano_batches{0, -1};
  const Plan plan = make_slot_plan(request, nano_batches, Pass::kForward);
  const auto attention = [&](double pairs) {
    return pairs / 1000 * static_cast<double>(request.speeds[0].attention_ps_per_kload) * 2 / 7;
  };
  const double linear = 16'384. * static_cast<double>(request.speeds[0].linear_ps_per_token) / 3;
  const double at_home = attention(static_cast<double>(plan.load[0].pairs));
  const double served = attention(static_cast<double>(plan.load[1].pairs));
  ASSERT_NEAR(linear + at_home, served, .05 * served) << "whole work is even";
  const double partner = (linear + attention(amount_of(request, 0, 1, 1).pairs)) / 2;
  // The time that the idle stage leaves for messages. It is far less than the stage at work has to
  // do.
  const double room = std::max(linear + at_home, served) + partner - linear - served;
  ASSERT_LT(room, .8 * (linear + at_home));
  const auto time_with = [&](double exchange_ps) {
    const double bytes =
        8. * static_cast<double>(plan.load[0].send_bytes + plan.load[1].o_send_bytes);
    request.bytes_per_us = static_cast<int64_t>(bytes * 1e6 / exchange_ps);
    return slot_time(request, plan, nano_batches, Pass::kForward);
  };
  EXPECT_TRUE(time_with(.95 * room).is_hidden());
  const SlotTime exposed = time_with(1.2 * room);
  EXPECT_FALSE(exposed.is_hidden());
  EXPECT_LT(exposed.exchange_ps, exposed.compute_ps);
  EXPECT_NEAR(static_cast<double>(exposed.partner_ps), partner, 1e-3 * partner);
  const double chain = linear + served + 1.2 * room;
  EXPECT_NEAR(static_cast<double>(exposed.chain_ps), chain, 1e-3 * chain);
  EXPECT_EQ(exposed.total_ps(), exposed.chain_ps - exposed.partner_ps);
  // Without a partner, nothing hides.
  request.nano_batches.resize(1);
  const SlotTime alone = slot_time(request, plan, nano_batches, Pass::kForward);
  EXPECT_EQ(alone.partner_ps, 0);
  EXPECT_EQ(alone.total_ps(), exposed.chain_ps);
}

TEST(TickFigures, show_by_how_much_exchanges_make_ticks_longer) {
  for (const int slots : {1, 2}) {
    PipelineRequest request = two_stages(4, .6);
    request.slots = slots;
    if (slots == 1) request.balance_target = BalanceTarget::kAttention;
    const PipelinePlan plan = make_pipeline_plan(request);
    for (const int64_t bytes_per_us : {0, 10, 1'000'000}) {
      request.bytes_per_us = bytes_per_us;
      for (const TickFigures& tick : tick_figures(request, plan)) {
        if (bytes_per_us == 0) {
          EXPECT_EQ(tick.exposed_ps, 0);
        }
        if (bytes_per_us == 10) {
          EXPECT_GT(tick.exposed_ps, 0);
        }
        if (slots == 1) {
          EXPECT_NEAR(tick.exposed_ps, tick.exchange_ps, 4) << "nothing hides";
        }
        if (slots == 2) {
          EXPECT_LE(tick.exposed_ps, tick.exchange_ps);
        }
      }
    }
  }
}

TEST(fill_ticks, end_sooner_where_their_exchanges_would_not_hide_and_send_less) {
  PipelineRequest request = two_stages(4, .6);
  const PipelinePlan plain = make_pipeline_plan(request);
  request.bytes_per_us = 1'000'000;
  EXPECT_EQ(make_pipeline_plan(request).plans, plain.plans) << "a fast wire changes nothing";
  // A wire with which the longest exchanges of plans that ignore it take twice as long as
  // their ticks.
  double slower = 0;
  for (const TickFigures& tick : tick_figures(request, plain)) {
    if (tick.working == 1)
      slower = std::max(
          slower, static_cast<double>(tick.exchange_ps) / static_cast<double>(tick.planned_ps));
  }
  request.bytes_per_us = static_cast<int64_t>(1'000'000 * slower / 2);
  const std::vector<TickFigures> before = tick_figures(request, plain);
  const std::vector<TickFigures> weighed = tick_figures(request, make_pipeline_plan(request));
  int raised = 0;
  double sum_before = 0, sum_weighed = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const auto length = [](const TickFigures& tick) {
      return static_cast<double>(tick.planned_ps + tick.exposed_ps);
    };
    EXPECT_LE(length(weighed[i]), length(before[i])) << i;
    if (before[i].working == 2) {
      EXPECT_EQ(weighed[i].bytes, before[i].bytes) << i;
    }
    if (before[i].exposed_ps < before[i].planned_ps / 10) continue;
    ++raised;
    EXPECT_LT(weighed[i].bytes, before[i].bytes) << i;
    EXPECT_GT(weighed[i].planned_ps, before[i].planned_ps) << i;
    sum_before += length(before[i]);
    sum_weighed += length(weighed[i]);
  }
  EXPECT_LT(sum_weighed, .9 * sum_before);
  EXPECT_GE(raised, 2);
  // A plan of one slot is the one that the step has.
  const Plan alone = make_slot_plan(request, std::vector{0, -1}, Pass::kForward);
  EXPECT_EQ(plan_hash(alone), plan_hash(make_pipeline_plan(request).plans[0]));
}

}  // namespace
}  // namespace distca
