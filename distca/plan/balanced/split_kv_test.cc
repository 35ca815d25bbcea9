#include "distca/plan/balanced/split_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "distca/plan/balanced/balanced_layout.h"
#include "distca/plan/balanced/search.h"
#include "distca/plan/layout_sequential.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/plan_summary.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::IsEmpty;
using testing::request_for;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kTolerance = 20'000;

Plan plan_with(const PlanRequest& request, const Layout& layout, std::vector<Task> tasks) {
  Plan plan;
  plan.nano_batch = request.nano_batch;
  plan.cluster = request.cluster;
  plan.shape = request.shape;
  plan.options = request.options;
  plan.layout = layout;
  plan.tasks = std::move(tasks);
  testing::complete(plan);
  return plan;
}

Plan plan_with_split_kv(const PlanRequest& request, const Layout& layout) {
  return plan_with(request, layout, schedule_with_split_kv(request, layout));
}

int64_t bytes(const Plan& plan) {
  const PlanSummary summary = summarize(plan);
  return summary.qkv_bytes + summary.o_bytes;
}

/// The bytes that the released planner moves (bench/results/planner_epyc_2026-11-21.md), and the
/// share of them that ours may move.
struct SplitKvCase {
  const char* name;
  int64_t original_mib;       // Q, K, V and O
  int64_t original_send_mib;  // the largest
  double sequential;
  double own;
  double spread;
};

PlanRequest workload_request(const SplitKvCase& workload) {
  const Workload read =
      read_workload("distca/plan/testdata/workloads/" + std::string(workload.name) + ".json");
  PlanRequest request = request_for({}, read.ranks, "balanced", kTolerance);
  request.nano_batch = read.nano_batch;
  request.options.split_kv = true;
  return request;
}

class SplitKv : public ::testing::TestWithParam<SplitKvCase> {
 protected:
  void expect_share(const Plan& plan, double share) {
    EXPECT_LE(static_cast<double>(bytes(plan)),
              share * static_cast<double>(GetParam().original_mib * kMiB));
    EXPECT_LE(max_over_mean(plan), 1.02);
    EXPECT_THAT(validate(plan), IsEmpty());
  }
};

TEST_P(SplitKv, need_this_share_of_the_originals_bytes_on_a_sequential_layout) {
  const PlanRequest request = workload_request(GetParam());
  expect_share(plan_with_split_kv(request, sequential_layout(request)), GetParam().sequential);
}

TEST_P(SplitKv, need_this_share_of_the_originals_bytes_on_our_own_layout) {
  const PlanRequest request = workload_request(GetParam());
  expect_share(plan_with_split_kv(request, balanced_layout(request)), GetParam().own);
}

TEST_P(SplitKv, spread_lowers_the_largest_send_and_receive) {
  PlanRequest request = workload_request(GetParam());
  request.options.spread = true;
  const Plan plan = plan_with_split_kv(request, balanced_layout(request));
  const PlanSummary summary = summarize(plan);
  EXPECT_LE(static_cast<double>(std::max(summary.max_send_bytes, summary.max_receive_bytes)),
            GetParam().spread * static_cast<double>(GetParam().original_send_mib * kMiB));
  EXPECT_LE(max_over_mean(plan), 1.02);
  EXPECT_THAT(validate(plan), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    , SplitKv,
    ::testing::Values(SplitKvCase{"pretrain_8x128k_0", 1568 + 224, 445, 0.78, 0.66, 0.45},
                      SplitKvCase{"pretrain_64x128k_1", 11921 + 1657, 908, 0.73, 0.56, 0.45},
                      SplitKvCase{"pretrain_64x128k_2", 14666 + 1590, 801, 0.73, 0.56, 0.45},
                      SplitKvCase{"prolong_64x128k_0", 11694 + 1553, 885, 0.73, 0.56, 0.45},
                      SplitKvCase{"pretrain_512x128k_0", 109588 + 13153, 932, 0.73, 0.56, 0.45}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SplitKvCaps, on_bytes_are_kept_as_the_load_is_evened) {
  const SplitKvCase workload{"prolong_64x128k_0", 0, 0, 0, 0, 0};
  const PlanRequest request = workload_request(workload);
  const Layout layout = balanced_layout(request);
  const PlanSummary free = summarize(plan_with_split_kv(request, layout));
  for (int64_t Cluster::*cap : {&Cluster::max_send_bytes, &Cluster::max_receive_bytes}) {
    PlanRequest capped = request;
    const bool send = cap == &Cluster::max_send_bytes;
    capped.cluster.*cap = (send ? free.max_send_bytes : free.max_receive_bytes) / 20 * 19;
    const Plan plan = plan_with_split_kv(capped, layout);
    const PlanSummary summary = summarize(plan);
    EXPECT_LE(send ? summary.max_send_bytes : summary.max_receive_bytes, capped.cluster.*cap);
    EXPECT_LE(summary.max_over_mean, 1.02) << send;
    EXPECT_THAT(validate(plan), IsEmpty()) << send;
  }
}

TEST(SplitKvTime, is_even_where_a_profile_prices_tasks) {
  const SplitKvCase workload{"pretrain_64x128k_1", 0, 0, 0, 0, 0};
  PlanRequest request = workload_request(workload);
  request.profile = profile_by_name("h200");
  for (const bool own : {false, true}) {
    const Layout layout = own ? balanced_layout(request) : sequential_layout(request);
    Plan plan = plan_with_split_kv(request, layout);
    plan.options.price = profile_name(*request.profile);
    plan.load = account(plan, request.profile.get());
    EXPECT_LE(max_over_mean(plan, &ServerLoad::time_ns), 1.02) << own;
    EXPECT_THAT(validate(plan, {.profile = request.profile.get()}), IsEmpty()) << own;
    const Plan whole = plan_with(request, layout, schedule_balanced(request, layout));
    EXPECT_LT(bytes(plan), bytes(whole)) << own;
  }
}

/// Uneven capacities, servers without tokens and workers that do not serve among them.
PlanRequest random_request(Random& random) {
  PlanRequest request =
      request_for(testing::random_lengths(random), 1 + static_cast<int>(random.below(8)),
                  "balanced", static_cast<int64_t>(random.below(3)) * 50'000);
  for (int dedicated = static_cast<int>(random.below(3)); dedicated > 0; --dedicated) {
    request.cluster.capacity.push_back(1);
  }
  for (int64_t& capacity : request.cluster.capacity) {
    capacity = static_cast<int64_t>(random.below(4));
  }
  request.cluster.capacity[random.below(request.cluster.capacity.size())] = 2;
  request.options.split_kv = true;
  request.options.spread = random.below(4) == 0;
  // Cheap queries make groups pay for short documents too.
  request.shape = {.num_heads = 1, .num_kv_heads = 1, .head_dim_qk = random.below(2) == 0 ? 16 : 1};
  request.shape.head_dim_v = random.below(2) == 0 ? 128 : 16;
  if (random.below(4) == 0) {
    request.shape.mask.window_left = static_cast<int64_t>(random.below(2000));
  }
  return request;
}

TEST(SplitKvRandom, batches_give_valid_plans_with_no_more_bytes_than_tasks_with_all_keys) {
  Random random(11);
  int parts = 0;  // tasks with part of the keys
  for (int trial = 0; trial < 400; ++trial) {
    PlanRequest request = random_request(random);
    const Layout layout =
        random.below(2) == 0 ? sequential_layout(request) : balanced_layout(request);
    const Plan plan = plan_with_split_kv(request, layout);
    EXPECT_THAT(validate(plan), IsEmpty()) << trial;
    const double bound = request.options.most_over_share();
    const double reached = max_over_mean(plan);
    const double home = max_over_mean(plan.cluster, testing::home_load(plan));
    EXPECT_LE(reached, std::max(bound, home) + 1e-9) << trial;
    for (const Task& task : plan.tasks) {
      parts +=
          request.shape.mask.window_left < 0 && (task.kv.begin > 0 || task.kv.end < task.q.end);
    }
    request.options.split_kv = request.options.spread = false;
    const Plan whole = plan_with(request, layout, schedule_balanced(request, layout));
    if (plan.options.spread || reached > bound || max_over_mean(whole) > bound) continue;
    EXPECT_LE(bytes(plan), bytes(whole)) << trial;
  }
  EXPECT_GT(parts, 400);
}

TEST(SplitKvRandom, shapes_of_batches_that_break_planners_give_valid_plans) {
  const std::vector<std::vector<int64_t>> batches = {
      {}, {1}, {127}, {129, 1}, std::vector<int64_t>(16, 1024), {200'001}, {65'536, 1, 1, 1}};
  for (const auto& lengths : batches) {
    for (const int workers : {1, 2, 3, 7, 40}) {
      PlanRequest request = request_for(lengths, workers, "balanced", kTolerance);
      request.options.split_kv = true;
      const Plan plan = plan_with_split_kv(request, sequential_layout(request));
      EXPECT_THAT(validate(plan), IsEmpty()) << lengths.size() << " documents, " << workers;
      if (!lengths.empty() && lengths[0] > 100'000) {
        EXPECT_LE(max_over_mean(plan), 1.02);
      }
    }
  }
}

}  // namespace
}  // namespace distca
