#include "distca/train/speed_sample.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

/// A different number of milliseconds for every kind, pass and part of a step.
OpTimes made_up_times() {
  OpTimes times;
  double milliseconds = 0;
  for (auto& of_kind : times.seconds) {
    for (auto& of_pass : of_kind) {
      for (double& seconds : of_pass) seconds = 1e-3 * ++milliseconds;
    }
  }
  return times;
}

double& part(OpTimes& times, OpKind kind, Pass pass, OpPart part) {
  return times.seconds[static_cast<int>(kind)][static_cast<int>(pass)][static_cast<int>(part)];
}

TEST(SpeedSample, linear_and_attention_are_all_time_before_the_sum_but_waiting) {
  const OpTimes times = made_up_times();
  double busy_s = 0;
  for (const OpPart part : {OpPart::kPlay, OpPart::kPack, OpPart::kIssue, OpPart::kLand})
    busy_s += times.of(part);
  const RankSample sample = rank_sample(times, 7, 9);
  EXPECT_NEAR(static_cast<double>(sample.linear_ns + sample.attention_ns), busy_s * 1e9, 2);
  EXPECT_EQ(sample.tokens, 7);
  EXPECT_EQ(sample.load, 9);
}

TEST(SpeedSample, what_an_exchange_costs_its_rank_is_linear_work) {
  OpTimes times;
  part(times, OpKind::kPreAttention, Pass::kForward, OpPart::kPlay) = 1e-3;
  part(times, OpKind::kDispatch, Pass::kForward, OpPart::kPack) = 10e-3;
  part(times, OpKind::kDispatch, Pass::kBackward, OpPart::kIssue) = 100e-3;
  part(times, OpKind::kCombine, Pass::kBackward, OpPart::kLand) = 1000e-3;
  part(times, OpKind::kCombine, Pass::kForward, OpPart::kWait) = 10'000e-3;
  part(times, OpKind::kCoreAttention, Pass::kBackward, OpPart::kPlay) = 5e-3;
  const RankSample sample = rank_sample(times, 1, 1);
  EXPECT_EQ(sample.linear_ns, 1'111'000'000);
  EXPECT_EQ(sample.waited_ns, 10'000'000'000);
  EXPECT_EQ(sample.attention_ns, 5'000'000);
}

TEST(SpeedSample, waits_for_ranks_that_divide_the_layers_are_waits) {
  OpTimes times;
  part(times, OpKind::kMlpNorm, Pass::kForward, OpPart::kPlay) = 1e-3;
  part(times, OpKind::kGatherRows, Pass::kBackward, OpPart::kPack) = 10e-3;
  part(times, OpKind::kSumRows, Pass::kForward, OpPart::kLand) = 100e-3;
  part(times, OpKind::kGatherRows, Pass::kForward, OpPart::kWait) = 1;
  part(times, OpKind::kSumRows, Pass::kBackward, OpPart::kWait) = 10;
  part(times, OpKind::kLoss, Pass::kForward, OpPart::kPlay) = 1000e-3;
  part(times, OpKind::kLoss, Pass::kForward, OpPart::kWait) = 100;
  const RankSample sample = rank_sample(times, 1, 1);
  EXPECT_EQ(sample.linear_ns, 1'111'000'000);
  EXPECT_EQ(sample.waited_ns, 111'000'000'000);
}

TEST(SpeedSample, the_sum_over_ranks_and_the_update_are_no_ranks_speed) {
  OpTimes times;
  part(times, OpKind::kLoss, Pass::kBackward, OpPart::kPlay) = 3e-3;
  part(times, OpKind::kGradAdd, Pass::kBackward, OpPart::kPlay) = 1;
  part(times, OpKind::kGradGather, Pass::kBackward, OpPart::kIssue) = 1;
  part(times, OpKind::kOptimizer, Pass::kBackward, OpPart::kPlay) = 1;
  part(times, OpKind::kGradReduce, Pass::kBackward, OpPart::kWait) = 1;
  const RankSample sample = rank_sample(times, 1, 0);
  EXPECT_EQ(sample.linear_ns, 3'000'000);
  EXPECT_EQ(sample.waited_ns, 0);
}

}  // namespace
}  // namespace distca
