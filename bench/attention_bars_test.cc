#include "bench/attention_bars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca::bench {
namespace {

using kernels::Isa;

constexpr auto kFp32 = ScalarType::kFloat32;
constexpr auto kBf16 = ScalarType::kBFloat16;

Verdict judged(double reached, double bar, double control_low, double control_high) {
  return Figure{
      .reached = {reached, reached, reached}, .control = {1, control_low, control_high}, .bar = bar}
      .verdict();
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

TEST(AttentionBars, a_bar_is_reached_exactly_or_missed_where_the_control_is_narrower) {
  EXPECT_EQ(judged(0.85, 0.80, 0.99, 1.01), Verdict::kReached);
  EXPECT_EQ(judged(0.75, 0.80, 0.99, 1.01), Verdict::kMissed);
  EXPECT_EQ(judged(0.80, 0.80, 1, 1), Verdict::kReached);
  EXPECT_EQ(judged(0.75, 0, 0.99, 1.01), Verdict::kShown);
}

TEST(AttentionBars, a_margin_within_the_control_is_not_decidable) {
  EXPECT_EQ(judged(0.81, 0.80, 0.98, 1.001), Verdict::kNotDecidable);
  EXPECT_EQ(judged(0.79, 0.80, 0.999, 1.02), Verdict::kNotDecidable);
  EXPECT_EQ(judged(0.81, 0.80, 0.98, 0.981), Verdict::kNotDecidable);  // off 1 altogether
}

TEST(AttentionBars, the_tally_counts_every_judged_figure_once) {
  Tally tally;
  for (const Verdict verdict : {Verdict::kShown, Verdict::kReached, Verdict::kReached,
                                Verdict::kMissed, Verdict::kNotDecidable}) {
    tally.add(verdict);
  }
  EXPECT_EQ(tally.reached, 2);
  EXPECT_EQ(tally.missed, 1);
  EXPECT_EQ(tally.not_decidable, 1);
  EXPECT_EQ(tally.judged(), 4);
}

}  // namespace
}  // namespace distca::bench
