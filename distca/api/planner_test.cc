#include "distca/api/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "distca/base/error.h"
#include "distca/plan/plan.h"

namespace distca::api {
namespace {

using ::testing::HasSubstr;

const std::vector<int64_t> kOffsets = {0, 700, 701, 831, 1931, 1931, 2060, 2444};
constexpr Shape kShape{.num_heads = 4, .num_kv_heads = 2, .head_dim = 16};
using Tokens = std::vector<std::vector<Range>>;

std::string refusal(const BatchRequest& request) {
  try {
    plan_batch(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPlan);
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

TEST(PlanBatch, chooses_even_tokens_and_balances) {
  const BatchPlan plan = plan_batch({.cu_seqlens = kOffsets, .num_ranks = 3, .shape = kShape});
  EXPECT_EQ(plan.num_ranks(), 3);
  int64_t tokens = 0;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_NEAR(plan.num_tokens(rank), 2444 / 3.0, 128);
    tokens += plan.num_tokens(rank);
  }
  EXPECT_EQ(tokens, 2444);
  EXPECT_LE(plan.max_over_mean(), 1.15) << "shards of 128 of 2,444 tokens";
  EXPECT_EQ(plan.plan().options.tolerance_ppm, 20'000);
}

TEST(PlanBatch, is_a_function_of_the_request_and_travels_as_json) {
  const BatchRequest request{.cu_seqlens = kOffsets, .num_ranks = 4, .shape = kShape};
  const BatchPlan plan = plan_batch(request);
  EXPECT_EQ(plan_batch(request).hash(), plan.hash());
  const BatchPlan copy = BatchPlan::from_json(plan.json());
  EXPECT_EQ(copy.hash(), plan.hash());
  EXPECT_EQ(copy.tokens(), plan.tokens());
  BatchRequest other = request;
  other.window_left = 200;
  EXPECT_NE(plan_batch(other).hash(), plan.hash());
}

TEST(PlanBatch, takes_the_callers_tokens_as_they_are) {
  // Not in the order of the ranks, cut inside documents 0 and 3, a rank without tokens.
  const Tokens tokens = {{{1931, 2444}, {0, 128}}, {}, {{128, 1343}}, {{1343, 1931}}};
  BatchRequest request{.cu_seqlens = kOffsets, .num_ranks = 4, .shape = kShape, .tokens = tokens};
  const BatchPlan plan = plan_batch(request);
  EXPECT_EQ(plan.tokens(), tokens);
  EXPECT_EQ(plan.num_tokens(0), 641);
  EXPECT_EQ(plan.num_tokens(1), 0);
  EXPECT_GT(plan.plan().load[1].pairs, 0) << "it computes for the others";
  EXPECT_LE(plan.max_over_mean(), 1.15);
  // The tokens of a plan also serve layers with another window.
  request.window_left = 100;
  request.tokens = plan_batch({.cu_seqlens = kOffsets, .num_ranks = 4, .shape = kShape}).tokens();
  EXPECT_EQ(plan_batch(request).tokens(), request.tokens);
}

TEST(PlanBatch, gives_each_rank_its_share) {
  const BatchPlan plan = plan_batch({.cu_seqlens = {0, 4096},
                                     .num_ranks = 3,
                                     .shape = kShape,
                                     .num_holders = 2,
                                     .capacity = {0, 1, 3}});
  EXPECT_EQ(plan.num_tokens(2), 0);
  const auto& load = plan.plan().load;
  EXPECT_EQ(load[0].pairs, 0);
  EXPECT_NEAR(static_cast<double>(load[2].pairs) / static_cast<double>(load[1].pairs), 3, 0.5);
}

TEST(PlanBatch, gives_ranks_with_fewer_tokens_more_attention) {
  const auto pairs = [](int64_t linear_work) {
    const BatchPlan plan = plan_batch({.cu_seqlens = {0, 4096, 5120},
                                       .num_ranks = 2,
                                       .shape = kShape,
                                       .tokens = {{{0, 4096}}, {{4096, 5120}}},
                                       .linear_work = linear_work});
    const std::vector<ServerLoad>& load = plan.plan().load;
    const BatchPlan::Work work = plan.work(linear_work);
    EXPECT_LE(work.planned, 1.05 * work.mean);
    EXPECT_GT(work.at_home, 1.5 * work.mean);
    return std::pair{static_cast<double>(load[0].pairs), static_cast<double>(load[1].pairs)};
  };
  const auto [even0, even1] = pairs(0);
  EXPECT_NEAR(even0 / even1, 1, 0.05);
  // 6 flops a token and 7 a pair and head dimension: rank 1 has 3072 tokens less.
  constexpr int64_t kWork = 100'000;
  const double difference =
      6.0 * kWork * 3072 / (7.0 * static_cast<double>(kShape.num_heads * 2 * kShape.head_dim));
  const auto [first, second] = pairs(kWork);
  EXPECT_NEAR((second - first) / difference, 1, 0.1);
  EXPECT_EQ(refusal({.cu_seqlens = {0, 5}, .num_ranks = 1, .capacity = {1}, .linear_work = 3}),
            "capacity and linear_work: one of the two");
  EXPECT_EQ(refusal({.cu_seqlens = {0, 5}, .num_ranks = 1, .linear_work = -1}),
            "linear_work = -1: 0 .. 1099511627776");
}

TEST(PlanBatch, options_reach_the_planner) {
  const auto options = [](BatchRequest request) {
    request.cu_seqlens = kOffsets;
    request.num_ranks = 3;
    request.shape = kShape;
    return plan_batch(request).plan().options;
  };
  EXPECT_EQ(options({.scheduler = "greedy"}).scheduler, "greedy");
  EXPECT_EQ(options({}).tolerance_ppm, 20'000);
  EXPECT_EQ(options({.tolerance = 0.1}).tolerance_ppm, 100'000);
  EXPECT_EQ(options({.tolerance = 0}).tolerance_ppm, 0);
  EXPECT_TRUE(options({.split_kv = true}).split_kv);
}

TEST(PlanBatch, takes_tokens_that_are_cut_anywhere_and_reads_their_plans) {
  const Tokens tokens = {
      {{0, 3}, {131, 1343}}, {{3, 131}, {1343, 1500}, {1501, 2444}}, {{1500, 1501}}};
  for (const char* scheduler : {"local", "greedy", "balanced"}) {
    const BatchPlan plan = plan_batch({.cu_seqlens = kOffsets,
                                       .num_ranks = 3,
                                       .shape = kShape,
                                       .tokens = tokens,
                                       .scheduler = scheduler});
    EXPECT_EQ(plan.tokens(), tokens);
    const BatchPlan::Work work = plan.work(0);
    EXPECT_GT(work.at_home, 1.5 * work.mean);
    EXPECT_NEAR(work.planned / work.mean, plan.max_over_mean(), 1e-12);
    if (plan.plan().options.scheduler == "local") EXPECT_DOUBLE_EQ(work.at_home, work.planned);
    EXPECT_EQ(BatchPlan::from_json(plan.json()).hash(), plan.hash());
  }
}

TEST(PlanBatch, says_in_one_line_what_is_wrong) {
  const auto with = [](const auto& change) {
    BatchRequest request{.cu_seqlens = kOffsets, .num_ranks = 2, .shape = kShape};
    change(request);
    return refusal(request);
  };
  EXPECT_EQ(with([](auto& r) { r.cu_seqlens = {}; }), "cu_seqlens begins with 0");
  EXPECT_EQ(with([](auto& r) { r.cu_seqlens = {0, 5, 3}; }), "cu_seqlens descends from 5 to 3");
  EXPECT_EQ(with([](auto& r) { r.num_ranks = 0; }), "num_ranks = 0: 1 or more");
  EXPECT_EQ(with([](auto& r) { r.num_holders = 3; }), "num_holders = 3: 0 .. 2");
  EXPECT_EQ(with([](auto& r) { r.capacity = {1}; }), "1 capacities for 2 ranks");
  EXPECT_EQ(with([](auto& r) { r.shape.num_heads = 3; }),
            "num_heads = 3, num_kv_heads = 2: the first is a multiple of the second");
  EXPECT_EQ(with([](auto& r) { r.shape.head_dim = 12; }), "head_dim = 12: a multiple of 8");
  EXPECT_EQ(with([](auto& r) { r.window_left = -2; }), "window_left = -2: -1, for all, or more");
  EXPECT_EQ(with([](auto& r) { r.tolerance = 1e30; }), "tolerance = 1e+30: 0 .. 1000000");
  EXPECT_EQ(with([](auto& r) { r.tolerance = -0.1; }), "tolerance = -0.1: 0 .. 1000000");
  EXPECT_EQ(with([](auto& r) { r.tolerance = NAN; }), "tolerance = nan: 0 .. 1000000");
  EXPECT_THAT(with([](auto& r) { r.scheduler = "balancd"; }), HasSubstr("balanced"));
  const auto holding = [&](const Tokens& tokens) {
    return with([&](auto& r) { r.tokens = tokens; });
  };
  EXPECT_EQ(holding({{{0, 2444}}}), "tokens of 1 ranks for 2 ranks");
  EXPECT_EQ(holding({{{0, 700}}, {{701, 2444}}}), "no rank holds tokens 700 to 701");
  EXPECT_EQ(holding({{{0, 702}}, {{701, 2444}}}), "token 701 is held twice");
  EXPECT_EQ(holding({{{0, 701}}, {{701, 2060}}}),
            "ranks hold tokens up to 2060, cu_seqlens ends at 2444");
  EXPECT_EQ(holding({{{0, 701}, {9, 5}}, {{701, 2444}}}), "tokens 9 to 5 are no range");
  EXPECT_EQ(holding({{{-5, 701}}, {{701, 2444}}}), "tokens -5 to 701 are no range");
}

}  // namespace
}  // namespace distca::api
