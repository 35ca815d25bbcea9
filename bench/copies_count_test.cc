#include "bench/copies_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/plan/exchange.h"
#include "distca/plan/plan_testing.h"

namespace distca::bench {
namespace {

/// A document of 1,024 tokens, a half on each of two workers.
Plan halves(const std::vector<Task>& tasks) {
  Plan plan;
  plan.nano_batch = NanoBatch::from_lengths({1024});
  plan.cluster = Cluster::in_place(2);
  plan.shape = {.num_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 8};
  plan.layout.workers = {{{0, {0, 512}}}, {{0, {512, 1024}}}};
  plan.tasks = tasks;
  testing::complete(plan);
  return plan;
}

TEST(CopiesCount, tokens_away_from_home_count_once_a_server) {
  // The first server takes [512, 640) of the second's queries; both tasks read the same keys.
  const Plan plan = halves({{.q = {0, 512}, .kv = {0, 512}, .server = 0},
                            {.q = {512, 640}, .kv = {0, 1024}, .server = 0},
                            {.q = {640, 768}, .kv = {0, 768}, .server = 1},
                            {.q = {768, 1024}, .kv = {0, 1024}, .server = 1}});
  EXPECT_EQ(away_tokens(plan), (AwayTokens{.queries = 128, .keys = 128 + 512}));
}

TEST(CopiesCount, nothing_is_away_where_every_query_and_its_keys_are_at_home) {
  Plan plan = halves({{.q = {0, 512}, .kv = {0, 512}, .server = 0}});
  EXPECT_EQ(away_tokens(plan), AwayTokens{});
}

TEST(CopiesCount, the_needed_bytes_are_those_of_the_plans_own_account) {
  Random random(4);
  for (int trial = 0; trial < 50; ++trial) {
    const Plan plan = testing::random_plan(3, trial % 3, random);
    Travels travels{};
    add_needed(plan, {.compute = ScalarType::kBFloat16, .gradient = ScalarType::kBFloat16}, true,
               &travels);
    int64_t qkv = 0, o = 0;
    for (const ServerLoad& load : plan.load) {
      qkv += load.send_bytes;
      o += load.o_send_bytes;
    }
    const int64_t lse = away_tokens(plan).queries * plan.shape.num_heads * 4;
    EXPECT_EQ(travels[static_cast<size_t>(Travel::kQkv)][kNeeded], qkv);
    EXPECT_EQ(travels[static_cast<size_t>(Travel::kQkvAgain)][kNeeded], qkv);
    EXPECT_EQ(travels[static_cast<size_t>(Travel::kO)][kNeeded], o + lse);
    EXPECT_EQ(travels[static_cast<size_t>(Travel::kDO)][kNeeded], o + 2 * lse);
    EXPECT_EQ(travels[static_cast<size_t>(Travel::kGradients)][kNeeded], qkv);
  }
}

TEST(CopiesCount, core_attention_counts_where_its_results_travel) {
  EXPECT_EQ(travel_of({.kind = OpKind::kCoreAttention}), Travel::kO);
  EXPECT_EQ(travel_of({.kind = OpKind::kCoreAttention, .pass = Pass::kBackward}),
            Travel::kGradients);
  EXPECT_EQ(travel_of({.kind = OpKind::kDispatch, .pass = Pass::kBackward}), Travel::kDO);
  EXPECT_EQ(travel_of({.kind = OpKind::kRedispatch, .pass = Pass::kBackward}), Travel::kQkvAgain);
}

}  // namespace
}  // namespace distca::bench
