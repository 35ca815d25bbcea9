#include "bench/plan_bars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Measured measured(double plan_ms, double metadata_ms) {
  Measured result;
  result.summary.max_over_mean = 1.02;
  result.plan_ms = plan_ms;
  result.metadata_ms = metadata_ms;
  return result;
}

std::vector<std::string> failed(const std::vector<Verdict>& verdicts) {
  std::vector<std::string> figures;
  for (const Verdict& verdict : verdicts) {
    if (!verdict.pass()) figures.push_back(verdict.figure);
  }
  return figures;
}

TEST(PlanBars, shares_are_of_the_originals_bytes_and_of_its_largest_send) {
  Measured original;
  original.bytes = 1000;
  original.summary.max_send_bytes = 200;
  original.summary.max_receive_bytes = 50;
  Measured ours;
  ours.bytes = 500;
  ours.summary.max_send_bytes = 80;
  ours.summary.max_receive_bytes = 40;
  const Shares found = shares(ours, original);
  EXPECT_DOUBLE_EQ(found.bytes, 0.5);
  EXPECT_DOUBLE_EQ(found.send, 0.4);
  EXPECT_DOUBLE_EQ(found.receive, 0.2);
  EXPECT_DOUBLE_EQ(share(0, 0), 1);
}

TEST(PlanBars, the_bar_on_bytes_is_looser_at_8_servers) {
  const Shares reached{.bytes = 0.9, .send = 0.9, .receive = 0.9};
  EXPECT_THAT(failed(judge_shares("", 0, "", 64, reached)), ElementsAre("share of bytes"));
  EXPECT_THAT(failed(judge_shares("", 0, "", 512, reached)), ElementsAre("share of bytes"));
  EXPECT_THAT(failed(judge_shares("", 0, "", 8, reached)), IsEmpty());
}

TEST(PlanBars, spread_is_held_to_its_largest_send_and_receive) {
  const size_t spread = balanced_variants("balanced").size() - 1;
  EXPECT_TRUE(balanced_variants("balanced")[spread].options.spread);
  const Shares reached{.bytes = 0.9, .send = 0.46, .receive = 0.45};
  EXPECT_THAT(failed(judge_shares("", spread, "", 64, reached)), ElementsAre("largest send"));
  EXPECT_THAT(judge_shares("", spread, "", 8, reached), IsEmpty());
}

TEST(PlanBars, times_count_on_the_own_layout_at_64_and_512_servers) {
  EXPECT_THAT(failed(judge_plan("", 2, "", 512, measured(21, 20))), ElementsAre("plan ms"));
  EXPECT_THAT(failed(judge_plan("", 2, "", 512, measured(20, 21))), ElementsAre("metadata ms"));
  EXPECT_THAT(failed(judge_plan("", 2, "", 64, measured(2, 3))), ElementsAre("plan + metadata ms"));
  EXPECT_THAT(failed(judge_plan("", 0, "", 512, measured(99, 99))), IsEmpty());
}

TEST(PlanBars, an_uneven_an_invalid_and_a_refused_plan_fail) {
  Measured plan = measured(0, 0);
  EXPECT_THAT(failed(judge_plan("", 0, "", 8, plan)), IsEmpty());
  plan.summary.max_over_mean = 1.021;
  plan.violations = 1;
  EXPECT_THAT(failed(judge_plan("", 0, "", 8, plan)), ElementsAre("max/mean", "violations"));
  plan.refusal = "no";
  EXPECT_THAT(failed(judge_plan("", 0, "", 8, plan)), ElementsAre("refused"));
}

TEST(PlanBars, what_the_planner_refuses_is_measured_as_refused) {
  const Workload workload{.ranks = 2,
                          .tokens_per_rank = 128,
                          .source = "",
                          .nano_batch = NanoBatch::from_lengths({256})};
  EXPECT_THAT(measure(workload, {.scheduler = "no such"}, 1).refusal,
              ::testing::HasSubstr("unknown scheduler"));
  const Measured local = measure(workload, {.scheduler = "local"}, 1);
  EXPECT_EQ(local.refusal, "");
  EXPECT_EQ(local.bytes, 128 * 512);  // the upper half reads the keys of the lower one
  EXPECT_EQ(local.tasks, 2);
  EXPECT_EQ(local.violations, 0);
}

}  // namespace
}  // namespace distca::bench
