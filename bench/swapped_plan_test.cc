#include "bench/swapped_plan_testing.h"

#include <gtest/gtest.h>

#include "distca/plan/exchange.h"

namespace distca::bench {
namespace {

const AttentionShape kShape{.num_heads = 4,
                            .num_kv_heads = 2,
                            .head_dim_qk = 8,
                            .head_dim_v = 8,
                            .type = ScalarType::kFloat32};

TEST(SwappedPlan, each_worker_sends_what_it_receives) {
  const Plan plan = swapped_plan({.home_tokens = 300, .swapped_tokens = 100}, kShape);
  const PlanIndex index(plan);
  for (const int rank : {0, 1}) {
    const RankExchange exchange = index.exchange(rank);
    EXPECT_EQ(exchange.local_tokens, 400);
    ASSERT_EQ(exchange.sends.size(), 1u);
    ASSERT_EQ(exchange.receives.size(), 1u);
    EXPECT_EQ(exchange.sends[0].q_tokens, 100);
    EXPECT_EQ(exchange.sends[0].kv_tokens, 100);
    EXPECT_EQ(exchange.receives[0].q_tokens, 100);
  }
  EXPECT_EQ(plan.load[0], plan.load[1]);
}

TEST(SwappedPlan, two_tasks_stay_for_exchanges_to_hide_under) {
  const Plan plan = swapped_plan({.home_tokens = 301, .swapped_tokens = 100}, kShape);
  const RankExchange exchange = PlanIndex(plan).exchange(0);
  int home = 0;
  for (const ServerTask& task : exchange.tasks) home += task.q.buffer == 0 ? 1 : 0;
  EXPECT_EQ(home, 2);
  EXPECT_EQ(exchange.tasks.size(), 3u);
}

TEST(SwappedPlan, everything_may_be_swapped) {
  const Plan plan = swapped_plan({.home_tokens = 0, .swapped_tokens = 128}, kShape);
  EXPECT_EQ(plan.tasks.size(), 2u);
  EXPECT_EQ(plan.tasks[0].document, 1);  // server 0 has worker 1's
}

}  // namespace
}  // namespace distca::bench
