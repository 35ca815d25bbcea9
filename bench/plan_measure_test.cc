#include "bench/plan_measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distca::bench {
namespace {

TEST(PlanMeasure, what_the_planner_refuses_is_measured_as_refused) {
  const Workload workload{.ranks = 2,
                          .tokens_per_rank = 128,
                          .source = "",
                          .nano_batch = NanoBatch::from_lengths({256})};
  EXPECT_THAT(measure(workload, {.scheduler = "no such"}, 1).value("refusal", ""),
              ::testing::HasSubstr("unknown scheduler"));
  const Json local = measure(workload, {.scheduler = "local"}, 1);
  EXPECT_FALSE(local.contains("refusal"));
  EXPECT_EQ(local["qkv_bytes"], 128 * 512);  // the upper half reads the keys of the lower one
  EXPECT_EQ(local["o_bytes"], 0);
  EXPECT_EQ(local["tasks"], 2);
  EXPECT_EQ(local["violations"], 0);
}

TEST(PlanMeasure, the_variants_are_every_way_to_move_less_and_the_last_one_spreads) {
  const std::vector<Variant> variants = balanced_variants("balanced");
  ASSERT_EQ(variants.size(), 5);
  EXPECT_TRUE(variants.back().options.spread);
}

}  // namespace
}  // namespace distca::bench
