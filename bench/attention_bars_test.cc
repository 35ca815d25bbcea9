#include "bench/attention_bars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca::bench {
namespace {

using kernels::Isa;

constexpr auto kFp32 = ScalarType::kFloat32;
constexpr auto kBf16 = ScalarType::kBFloat16;

Figure figure(double reached, double bar, double control_low, double control_high) {
  return {.reached = {reached, reached - 0.001, reached + 0.001},
          .control = {1, control_low, control_high},
          .bar = bar,
          .rounds = kLeastRounds};
}
Decision judged(double reached, double bar, double control_low, double control_high) {
  return figure(reached, bar, control_low, control_high).verdict();
}

TEST(AttentionBars, shares_of_the_peak_depend_on_format_instruction_set_and_length) {
  EXPECT_EQ(peak_bar(kFp32, Isa::kAvx512, 2048), 0.80);
  EXPECT_EQ(peak_bar(kFp32, Isa::kAvx512, 8192), 0.80);
  EXPECT_EQ(peak_bar(kFp32, Isa::kAvx512, 512), 0.72);
  EXPECT_EQ(peak_bar(kBf16, Isa::kAvx512Bf16, 4096), 0.75);
  EXPECT_EQ(peak_bar(kBf16, Isa::kAvx512Bf16, 512), 0.70);
  EXPECT_EQ(peak_bar(kFp32, Isa::kAvx2, 512), 0.75);
  EXPECT_EQ(peak_bar(kFp32, Isa::kAvx2, 8192), 0.75);
}

TEST(AttentionBars, other_lengths_and_instruction_sets_are_only_shown) {
  EXPECT_EQ(peak_bar(kFp32, Isa::kAvx512, 1024), 0);
  EXPECT_EQ(peak_bar(kFp32, Isa::kAvx512, 256), 0);
  EXPECT_EQ(peak_bar(kFp32, Isa::kAvx2, 256), 0);
  EXPECT_EQ(peak_bar(kBf16, Isa::kAvx512, 2048), 0);
  EXPECT_EQ(peak_bar(kFp32, Isa::kPortable, 2048), 0);
}

TEST(AttentionBars, torch_is_beaten_twice_on_avx512_machines_once_on_others) {
  EXPECT_EQ(torch_bar(kFp32, 512, {.avx512 = true}), 2);
  EXPECT_EQ(torch_bar(kBf16, 8192, {.avx512 = true}), 2);
  EXPECT_EQ(torch_bar(kFp32, 512, {.avx512 = false}), 1);
  EXPECT_EQ(torch_bar(kFp32, 256, {.avx512 = true}), 0);
}

TEST(AttentionBars, bf16_is_not_judged_where_torch_uses_amx) {
  const TorchMachine machine{.avx512 = true, .amx = true};
  EXPECT_EQ(torch_bar(kBf16, 2048, machine), 0);
  EXPECT_EQ(torch_bar(kFp32, 2048, machine), 2);
}

TEST(AttentionBars, shards_of_128_queries_are_judged_by_pass_and_group) {
  EXPECT_EQ(shard_bar(Pass::kForward, 128, 4), 0.95);
  EXPECT_EQ(shard_bar(Pass::kForward, 128, 1), 0.85);
  EXPECT_EQ(shard_bar(Pass::kBackward, 128, 4), 0.88);
  EXPECT_EQ(shard_bar(Pass::kBackward, 128, 1), 0.78);
  EXPECT_EQ(shard_bar(Pass::kForward, 16, 4), 0);
  EXPECT_EQ(shard_bar(Pass::kForward, 128, 2), 0);
}

TEST(AttentionBars, a_bar_is_reached_or_missed_where_the_control_is_narrower) {
  EXPECT_EQ(judged(0.85, 0.80, 0.99, 1.01), Decision::kReached);
  EXPECT_EQ(judged(0.75, 0.80, 0.99, 1.01), Decision::kMissed);
  EXPECT_EQ(judged(0.75, 0, 0.99, 1.01), Decision::kShown);
}

TEST(AttentionBars, a_margin_within_the_control_is_not_decidable) {
  EXPECT_EQ(judged(0.81, 0.80, 0.98, 1.001), Decision::kNotDecidable);
  EXPECT_EQ(judged(0.79, 0.80, 0.999, 1.02), Decision::kNotDecidable);
  EXPECT_EQ(judged(0.81, 0.80, 0.98, 0.981), Decision::kNotDecidable);  // off 1 altogether
}

TEST(AttentionBars, a_bar_within_the_figures_own_interval_is_not_decidable) {
  Figure wide = figure(0.85, 0.80, 0.99, 1.01);
  wide.reached.low = 0.79;
  EXPECT_EQ(wide.verdict(), Decision::kNotDecidable);
  wide = figure(0.75, 0.80, 0.99, 1.01);
  wide.reached.high = 0.80;
  EXPECT_EQ(wide.verdict(), Decision::kNotDecidable);
}

TEST(AttentionBars, fewer_than_15_rounds_decide_nothing) {
  for (const double reached : {0.5, 0.95}) {
    Figure few = figure(reached, 0.80, 0.99, 1.01);
    few.rounds = 14;
    EXPECT_EQ(few.verdict(), Decision::kNotDecidable);
    few.bar = 0;
    EXPECT_EQ(few.verdict(), Decision::kShown);
  }
}

TEST(AttentionBars, the_control_holds_the_noise_of_all_that_the_figure_is_made_of) {
  // The kernel is steady; the limit beside it is 10 % off in its second turn of every other round.
  const Rates kernel(15, 80.0), limit(15, 100.0);
  Rates limit_again(15, 100.0);
  for (size_t round = 0; round < 15; round += 2) limit_again[round] = 110;
  const Figure found = figure_of(quotient(kernel, limit), quotient(kernel, limit_again), 0.79);
  EXPECT_DOUBLE_EQ(found.reached.median, 0.8);
  EXPECT_DOUBLE_EQ(found.control.high, 1.1);
  EXPECT_EQ(found.rounds, 15);
  EXPECT_EQ(found.verdict(), Decision::kNotDecidable);
}

TEST(AttentionBars, the_tally_counts_every_judged_figure_once) {
  Tally tally;
  for (const Decision verdict : {Decision::kShown, Decision::kReached, Decision::kReached,
                                 Decision::kMissed, Decision::kNotDecidable}) {
    tally.add(verdict);
  }
  EXPECT_EQ(tally.reached, 2);
  EXPECT_EQ(tally.missed, 1);
  EXPECT_EQ(tally.not_decidable, 1);
  EXPECT_EQ(tally.judged(), 4);
}

}  // namespace
}  // namespace distca::bench
