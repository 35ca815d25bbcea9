#include "distca/train/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

StepMetrics step_of(std::vector<double> measured, std::vector<double> predicted) {
  StepMetrics step;
  step.plan_s = 0.25;
  step.plan_wait_s = 0.125;
  step.attention_s = std::move(measured);
  step.attention_predicted_s = std::move(predicted);
  return step;
}

TEST(RunSummary, sums_measured_and_predicted_times_and_keeps_each_steps_median_error) {
  RunSummary summary;
  summary.add({3, 4, 5}, {4, 4, 4}, step_of({1, 2, 4}, {1.5, 1.5, 8}));  // errors 1/2, 1/4, 1
  summary.add({3, 4, 5}, {4, 4, 4}, step_of({0, 2, 1}, {1, 2, 1}));      // one that did nothing
  EXPECT_THAT(summary.attention_s, ElementsAre(1, 4, 5));
  EXPECT_THAT(summary.attention_predicted_s, ElementsAre(2.5, 3.5, 9));
  EXPECT_THAT(summary.prediction_errors, ElementsAre(DoubleEq(0.5), DoubleEq(0)));
  EXPECT_THAT(summary.load_before, ElementsAre(6, 8, 10));
  EXPECT_EQ(summary.plan_s, 0.5);
  EXPECT_EQ(summary.plan_wait_s, 0.25);
}

TEST(RunSummary, without_a_profile_nothing_is_predicted) {
  RunSummary summary;
  summary.add({1, 1}, {1, 1}, step_of({1, 2}, {}));
  EXPECT_THAT(summary.attention_s, ElementsAre(1, 2));
  EXPECT_THAT(summary.attention_predicted_s, IsEmpty());
  EXPECT_THAT(summary.prediction_errors, IsEmpty());
}

}  // namespace
}  // namespace distca
