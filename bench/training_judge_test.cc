#include "bench/training_judge.h"

#include <gtest/gtest.h>

namespace distca::bench {
namespace {

/// `rounds` values about `middle`, within `spread` of it.
Rates about(double middle, double spread = 0, int rounds = kLeastRounds) {
  Rates values;
  for (int i = 0; i < rounds; ++i) values.push_back(middle + spread * (i % 3 - 1));
  return values;
}

TEST(Fastest, is_the_arm_with_the_lowest_median_and_the_first_of_equals) {
  EXPECT_EQ(fastest({{3, 3, 3}, {2, 2, 90}, {1, 4, 4}}), 1U);
  EXPECT_EQ(fastest({{2, 2}, {2, 2}}), 0U);
}

TEST(IdleJudgement, compares_ours_with_the_control_round_by_round) {
  const IdleJudgement judgement = judge_idle(about(0.05), about(0.05), about(0.04));
  EXPECT_DOUBLE_EQ(judgement.above.median, 0.05 - 0.04);
  EXPECT_EQ(judgement.decision, Decision::kReached);
  EXPECT_EQ(judge_idle(about(0.08), about(0.08), about(0.04)).decision, Decision::kMissed);
}

TEST(IdleJudgement, decides_nothing_within_its_noise_or_from_few_rounds) {
  EXPECT_EQ(judge_idle(about(0.07, 0.02), about(0.07, 0.02), about(0.04)).decision,
            Decision::kNotDecidable)
      << "the bar lies within the interval";
  EXPECT_EQ(judge_idle(about(0.05), about(0.09), about(0.04)).decision, Decision::kNotDecidable)
      << "ours differs from itself by more than from the bar";
  EXPECT_EQ(judge_idle(about(0.05, 0, 14), about(0.05, 0, 14), about(0.04, 0, 14)).decision,
            Decision::kNotDecidable);
}

TEST(TimesOurs, says_who_is_faster_unless_ours_against_itself_differs_as_much) {
  EXPECT_EQ(conclusion(times_ours(about(1.2), about(1.0), about(1.01))), "ours is faster");
  EXPECT_DOUBLE_EQ(times_ours(about(1.2), about(1.0), about(1.01)).reached.median, 1.2);
  EXPECT_EQ(conclusion(times_ours(about(0.8), about(1.0), about(1.01))), "the rival is faster");
  EXPECT_EQ(conclusion(times_ours(about(1.1), about(1.0), about(1.2))), "not decidable here");
}

}  // namespace
}  // namespace distca::bench
