#include "bench/played_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/pipeline_setup.h"

namespace distca::bench {
namespace {

double end_of(const PacedStep& step, double message_s = 0) {
  const auto price = [&](int rank, const Op& op) { return step.seconds(rank, op); };
  double end = 0;
  for (const ModelledRank& rank : modelled(step.programs(), price, message_s))
    end = std::max(end, rank.end_s);
  return end;
}

PacedSetting setting(int stages, int micro_batches) {
  return {.stages = stages, .micro_batches = micro_batches, .layers = 2};
}

TEST(PlayedModel, a_single_micro_batch_goes_through_one_stage_after_another) {
  const PacedStep step(setting(4, 1), PipelineArm::kHomePairs);
  EXPECT_NEAR(end_of(step), 4 * step.busy_seconds(), 1e-9);
  // Three p2p messages each way.
  EXPECT_NEAR(end_of(step, /*message_s=*/0.5), 4 * step.busy_seconds() + 6 * 0.5, 1e-9);
}

TEST(PlayedModel, one_stage_is_never_waited_for) {
  for (const PipelineArm arm : {PipelineArm::kHomeSingles, PipelineArm::kWholeEven}) {
    const PacedStep step(setting(1, 3), arm);
    EXPECT_NEAR(end_of(step), step.busy_seconds(), 1e-9);
  }
}

TEST(PlayedModel, every_rank_works_its_prices_and_ends_no_sooner) {
  const PacedStep step(setting(4, 4), PipelineArm::kWholeEven);
  const auto price = [&](int rank, const Op& op) { return step.seconds(rank, op); };
  double worked = 0;
  for (const ModelledRank& rank : modelled(step.programs(), price, 0)) {
    EXPECT_GE(rank.end_s, rank.worked_s);
    worked += rank.worked_s / 4;
  }
  EXPECT_NEAR(worked, step.busy_seconds(), 1e-9);
}

/// The order of the operations makes ranks wait for no more than the plans say: a layer's latency a
/// tick.
TEST(PlayedModel, aligned_ticks_last_as_long_as_they_are_planned) {
  for (const double share : {0.25, 0.4, 0.6}) {
    PacedSetting eight = setting(4, 8);
    eight.layers = 8;
    eight.attention_share = share;
    const PacedStep step(eight, PipelineArm::kWholeEven);
    const double planned = tick_sums(step.parts()).planned_s;
    EXPECT_LE(end_of(step), 1.01 * planned) << share;
    EXPECT_GE(end_of(step), 0.98 * planned) << share;
  }
}

}  // namespace
}  // namespace distca::bench
