#include "distca/plan/lower_bound.h"

#include <gtest/gtest.h>

#include "distca/plan/plan_summary.h"
#include "distca/plan/plan_testing.h"

namespace distca {
namespace {

using testing::request_for;

Plan unplanned(const PlanRequest& request) {
  return {.nano_batch = request.nano_batch,
          .cluster = request.cluster,
          .shape = request.shape,
          .options = request.options,
          .layout = {},
          .tasks = {},
          .load = {}};
}

TEST(LowerBound, of_the_workloads_is_that_of_the_table) {
  // The table is that of bench/results/planner_epyc_2026-11-21.md, at max/mean 1.02; MB are
  // 10^6 bytes.
  const std::pair<const char*, int64_t> found[] = {{"pretrain_64x128k_2", 7534},
                                                   {"pretrain_64x128k_1", 7023},
                                                   {"prolong_64x128k_0", 7269},
                                                   {"pretrain_512x128k_0", 60'964},
                                                   {"pretrain_8x128k_0", 1131}};
  for (const auto& [workload, megabytes] : found) {
    PlanRequest request = testing::workload_request(workload);
    request.options.tolerance_ppm = 20'000;
    EXPECT_EQ((lower_bound_bytes(unplanned(request)) + 500'000) / 1'000'000, megabytes) << workload;
  }
}

TEST(LowerBound, of_one_document_by_hand) {
  // Two servers without tolerance: two pieces, the upper one's queries see all 2,048 keys, the
  // lower one's the first 1,448.0 of them, below which half of the pairs lie; of 512 bytes each.
  EXPECT_EQ(lower_bound_bytes(unplanned(request_for({2048}, 2, "local", 0))), 741'380);
  // A tolerance of 100 % lets one server do it all.
  EXPECT_EQ(lower_bound_bytes(unplanned(request_for({2048}, 2, "local", 1'000'000))), 0);
}

TEST(LowerBound, is_reached_by_a_plan) {
  // [0, 256) on one worker, [256, 384) on the other, every query at home: the keys of 256 tokens.
  const int64_t tolerance_ppm = 109'958;  // loads 32,896 and 41,024 of 36,960 on average
  EXPECT_LE(lower_bound_bytes(unplanned(request_for({384}, 2, "local", tolerance_ppm))), 256 * 512);
}

TEST(LowerBound, is_nothing_where_every_document_fits_a_server) {
  EXPECT_EQ(lower_bound_bytes(unplanned(request_for({}, 3))), 0);
  EXPECT_EQ(lower_bound_bytes(unplanned(request_for({0, 0}, 3))), 0);
  EXPECT_EQ(lower_bound_bytes(unplanned(request_for({1, 1, 1, 1}, 4))), 0);
  EXPECT_EQ(lower_bound_bytes(unplanned(request_for(std::vector<int64_t>(8, 4096), 4))), 0);
  PlanRequest window = request_for({65'536}, 4);
  window.shape.mask.window_left = 1024;
  EXPECT_EQ(lower_bound_bytes(unplanned(window)), 0);
}

TEST(LowerBound, grows_with_servers_and_with_evenness) {
  int64_t last = 0;
  for (const int servers : {1, 2, 4, 8, 64}) {
    const int64_t bound = lower_bound_bytes(unplanned(request_for({200'000, 3000}, servers)));
    EXPECT_GE(bound, last);
    EXPECT_LE(bound,
              lower_bound_bytes(unplanned(request_for({200'000, 3000}, servers, "local", 0))));
    last = bound;
  }
  EXPECT_GT(last, 0);
}

TEST(LowerBound, no_plan_of_even_load_goes_below) {
  Random random(3);
  int compared = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const PlanRequest request =
        request_for(testing::random_lengths(random), 1 + static_cast<int>(random.below(8)));
    const Plan plan = make_plan(request);
    if (max_over_mean(plan) > 1.05) continue;
    const PlanSummary summary = summarize(plan);
    EXPECT_GE(summary.qkv_bytes + summary.o_bytes, lower_bound_bytes(plan));
    ++compared;
  }
  EXPECT_GT(compared, 50);
}

}  // namespace
}  // namespace distca
