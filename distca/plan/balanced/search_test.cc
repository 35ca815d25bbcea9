#include "distca/plan/balanced/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "distca/base/error.h"
#include "distca/plan/exchange.h"
#include "distca/plan/plan_batch_input.h"
#include "distca/plan/plan_summary.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

PlanRequest balanced(const std::vector<int64_t>& lengths, int workers) {
  PlanRequest request = testing::request_for(lengths, workers, "balanced", 20'000);
  request.options.layout = "sequential";
  return request;
}

PlanRequest workload(const std::string& name) {
  const Workload read = read_workload("distca/plan/testdata/workloads/" + name + ".json");
  PlanRequest request = balanced({}, read.ranks);
  request.nano_batch = read.nano_batch;
  return request;
}

int64_t all_bytes(const Plan& plan) {
  const PlanSummary summary = summarize(plan);
  return summary.qkv_bytes + summary.o_bytes;
}

int64_t largest(const Plan& plan, int64_t ServerLoad::*bytes) {
  int64_t most = 0;
  for (const ServerLoad& load : plan.load) most = std::max(most, load.*bytes);
  return most;
}

/// The figures of the released planner (bench/results/planner_epyc_2026-11-21.md), in MiB, and
/// the share to stay below.
struct OriginalPlan {
  const char* workload;
  int64_t bytes, receive;
  double share;
};

class BalancedWorkloads : public ::testing::TestWithParam<OriginalPlan> {};

TEST_P(BalancedWorkloads, are_even_for_fewer_bytes_than_the_original) {
  const OriginalPlan& original = GetParam();
  const Plan plan = make_plan(workload(original.workload));
  EXPECT_THAT(validate(plan), IsEmpty());
  EXPECT_LE(max_over_mean(plan), 1.02);
  EXPECT_LE(static_cast<double>(all_bytes(plan)),
            original.share * static_cast<double>(original.bytes << 20));
  EXPECT_LE(largest(plan, &ServerLoad::receive_bytes), original.receive << 20);
  size_t segments = 0;
  for (const auto& worker : plan.layout.workers) segments += worker.size();
  EXPECT_LE(plan.tasks.size(), segments + 2 * plan.load.size());  // no small shards
}

INSTANTIATE_TEST_SUITE_P(
    , BalancedWorkloads,
    ::testing::Values(OriginalPlan{"pretrain_8x128k_0", 1568 + 224, 308, 0.94},
                      OriginalPlan{"pretrain_64x128k_1", 11'921 + 1657, 438, 0.86},
                      OriginalPlan{"pretrain_64x128k_2", 14'666 + 1590, 654, 0.74},
                      OriginalPlan{"prolong_64x128k_0", 11'694 + 1553, 485, 0.82},
                      OriginalPlan{"pretrain_512x128k_0", 109'588 + 13'153, 662, 0.82}),
    [](const auto& info) { return std::string(info.param.workload); });

TEST(SchedulerBalanced, keeps_a_tight_bound_too) {
  PlanRequest request = workload("pretrain_64x128k_2");
  request.options.tolerance_ppm = 1000;
  const Plan plan = make_plan(request);
  EXPECT_LE(max_over_mean(plan), 1.001);
  EXPECT_THAT(validate(plan), IsEmpty());
}

TEST(SchedulerBalanced, random_batches_and_capacities_give_valid_plans) {
  Random random(21);
  for (int trial = 0; trial < 400; ++trial) {
    PlanRequest request =
        balanced(testing::random_lengths(random), 1 + static_cast<int>(random.below(8)));
    request.options.tolerance_ppm = static_cast<int64_t>(random.below(3)) * 50'000;
    if (random.below(3) == 0)
      request.shape.mask.window_left = static_cast<int64_t>(random.below(900));
    for (int dedicated = static_cast<int>(random.below(3)); dedicated > 0; --dedicated) {
      request.cluster.capacity.push_back(1);
    }
    for (int64_t& capacity : request.cluster.capacity)
      capacity = static_cast<int64_t>(random.below(5));
    request.cluster.capacity.back() = 3;
    const Plan plan = make_plan(request);
    EXPECT_THAT(validate(plan), IsEmpty());
    EXPECT_LE(max_over_mean(plan), max_over_mean(plan.cluster, testing::home_load(plan)));
  }
}

TEST(SchedulerBalanced, meets_the_bound_where_blocks_are_fine_enough) {
  Random random(22);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<int64_t> lengths(4 + random.below(20));
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random.below(60'000));
    PlanRequest request = balanced(lengths, 2 + static_cast<int>(random.below(5)));
    request.options.tolerance_ppm = 50'000;
    for (int64_t& capacity : request.cluster.capacity)
      capacity = 2 + static_cast<int64_t>(random.below(3));
    EXPECT_LE(max_over_mean(make_plan(request)), 1.05);
  }
}

TEST(SchedulerBalanced, shapes_of_batches_that_break_planners) {
  const std::vector<std::vector<int64_t>> batches = {
      {}, {1}, {127}, {129, 1}, std::vector<int64_t>(16, 1024), {200'001}, {65'536, 1, 1, 1}};
  for (const auto& lengths : batches) {
    for (const int workers : {1, 2, 3, 7, 40}) {
      const Plan plan = make_plan(balanced(lengths, workers));
      EXPECT_THAT(validate(plan), IsEmpty()) << lengths.size() << " documents, " << workers;
      EXPECT_LE(max_over_mean(plan), max_over_mean(plan.cluster, testing::home_load(plan)));
    }
  }
  EXPECT_LE(max_over_mean(make_plan(balanced({200'001}, 40))), 1.02);
}

TEST(SchedulerBalanced, load_follows_capacity_and_dedicated_servers_take_part) {
  PlanRequest request = balanced(std::vector<int64_t>(40, 4096), 4);
  request.cluster.capacity = {0, 2, 3, 4, 10};  // server 4 holds no tokens
  const Plan plan = make_plan(request);
  EXPECT_THAT(validate(plan), IsEmpty());
  EXPECT_EQ(plan.load[0].pairs, 0);
  EXPECT_LE(max_over_mean(plan), 1.02);
  EXPECT_EQ(plan.load[4].send_bytes, 0);
}

TEST(SchedulerBalanced, a_server_that_holds_the_keys_is_preferred) {
  // Documents 1 and 2 make workers 1 and 2 equally idle; worker 1 holds the keys of document 0.
  Layout layout;
  layout.workers = {{{0, {8192, 16'384}}}, {{0, {0, 8192}}}, {{1, {0, 8192}}}};
  const Plan plan = make_plan(balanced({16'384, 8192}, 3), layout);
  EXPECT_THAT(validate(plan), IsEmpty());
  const PlanSummary summary = summarize(plan);
  for (const Task& task : plan.tasks) {
    if (task.document == 1) {
      EXPECT_EQ(task.server, 2);
    }
  }
  EXPECT_GT(plan.load[1].o_send_bytes, plan.load[2].o_send_bytes);
  EXPECT_LE(summary.max_over_mean, 1.02);
}

TEST(SchedulerBalanced, a_whole_document_moves_in_one_task) {
  Layout layout;
  layout.workers = {{{0, {0, 4096}}, {1, {0, 4096}}}, {}};
  PlanRequest request = balanced({4096, 4096}, 2);
  request.options.tolerance_ppm = 0;
  const Plan plan = make_plan(request, layout);
  EXPECT_EQ(plan.tasks.size(), 2);
  EXPECT_DOUBLE_EQ(max_over_mean(plan), 1);
}

TEST(SchedulerBalanced, the_search_keeps_within_caps_and_refuses_by_name_what_it_cannot) {
  struct Cap {
    const char* name;
    int64_t Cluster::*cap;
    int64_t ServerLoad::*bytes;
  };
  for (const Cap& cap :
       {Cap{"max_receive_bytes", &Cluster::max_receive_bytes, &ServerLoad::receive_bytes},
        Cap{"max_send_bytes", &Cluster::max_send_bytes, &ServerLoad::send_bytes},
        Cap{"max_memory_bytes", &Cluster::max_memory_bytes, &ServerLoad::memory_bytes}}) {
    PlanRequest request = workload("pretrain_64x128k_2");
    request.cluster.memory = {.token_bytes = 1000, .kept_query_bytes = 1000, .kept_key_bytes = 500};
    const int64_t free = largest(make_plan(request), cap.bytes);
    request.cluster.*cap.cap = free - free / 20;
    const Plan plan = make_plan(request);
    EXPECT_LE(largest(plan, cap.bytes), request.cluster.*cap.cap) << cap.name;
    EXPECT_THAT(validate(plan), IsEmpty());

    request.cluster.*cap.cap = 1000;
    try {
      make_plan(request);
      ADD_FAILURE() << cap.name << " of 1000 bytes was met";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(cap.name));
    }
  }
}

TEST(SchedulerBalanced, a_cap_somewhat_lower_costs_bytes_before_even_load) {
  PlanRequest request = workload("pretrain_64x128k_1");
  const Plan plan = make_plan(request);
  request.cluster.max_send_bytes = largest(plan, &ServerLoad::send_bytes) * 95 / 100;
  const Plan capped = make_plan(request);
  EXPECT_LE(largest(capped, &ServerLoad::send_bytes), request.cluster.max_send_bytes);
  EXPECT_LE(max_over_mean(capped), 1.02);
  EXPECT_GT(all_bytes(capped), all_bytes(plan));
}

TEST(SchedulerBalanced, tight_caps_are_met_or_refused_by_name) {
  Random random(23);
  int met = 0;
  int refused = 0;
  for (int trial = 0; trial < 300; ++trial) {
    PlanRequest request =
        balanced(testing::random_lengths(random), 2 + static_cast<int>(random.below(6)));
    request.cluster.memory = {.token_bytes = 900, .kept_query_bytes = 500, .kept_key_bytes = 300};
    const auto cap = [&random] { return static_cast<int64_t>(random.below(6'000'000)); };
    if (random.below(2) == 0) request.cluster.max_receive_bytes = cap();
    if (random.below(2) == 0) request.cluster.max_send_bytes = cap();
    if (random.below(2) == 0) request.cluster.max_memory_bytes = cap();
    try {
      EXPECT_THAT(validate(make_plan(request)), IsEmpty());
      ++met;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kPlan);
      EXPECT_THAT(error.what(),
                  ::testing::AnyOf(HasSubstr("max_receive_bytes"), HasSubstr("max_send_bytes"),
                                   HasSubstr("max_memory_bytes")));
      ++refused;
    }
  }
  EXPECT_GT(met, 100);
  EXPECT_GT(refused, 10);
}

TEST(SchedulerBalanced, bytes_between_nodes_are_avoided_where_those_inside_cost_less) {
  PlanRequest request = workload("pretrain_64x128k_2");
  request.cluster.ranks_per_node = 8;
  const auto between_nodes = [](const PlanRequest& request) {
    const Plan plan = make_plan(request);
    EXPECT_LE(max_over_mean(plan), 1.02);
    int64_t bytes = 0;
    const PlanIndex index(plan);
    for (int rank = 0; rank < plan.cluster.num_servers(); ++rank) {
      for (const PeerTransfer& transfer : index.exchange(rank).receives) {
        if (plan.cluster.node(transfer.peer) == plan.cluster.node(rank)) continue;
        bytes += transfer.q_tokens * (plan.shape.q_token_bytes() + plan.shape.o_token_bytes()) +
                 transfer.kv_tokens * plan.shape.kv_token_bytes();
      }
    }
    return bytes;
  };
  const int64_t all_alike = between_nodes(request);
  request.cluster.inside.bytes_per_us = 9 * request.cluster.between.bytes_per_us;
  EXPECT_LT(between_nodes(request), all_alike - all_alike / 20);
}

TEST(SchedulerBalanced, nodes_without_cheaper_links_change_nothing) {
  PlanRequest request = workload("pretrain_64x128k_1");
  const std::vector<Task> alone = make_plan(request).tasks;
  request.cluster.ranks_per_node = 8;
  EXPECT_EQ(make_plan(request).tasks, alone);
}

TEST(SchedulerBalanced, in_a_window_only_its_keys_travel) {
  PlanRequest request = workload("pretrain_64x128k_1");
  const int64_t all_keys = all_bytes(make_plan(request));
  request.shape.mask.window_left = 8191;
  const Plan plan = make_plan(request);
  EXPECT_THAT(validate(plan), IsEmpty());
  EXPECT_LE(max_over_mean(plan), 1.02);
  EXPECT_LT(all_bytes(plan), all_keys / 2);
  for (const Task& task : plan.tasks) EXPECT_EQ(task.kv, request.shape.mask.keys(task.q));
}

TEST(SchedulerBalanced, with_a_profile_time_is_even) {
  PlanRequest request = workload("prolong_64x128k_0");
  request.profile = profile_by_name("h200");
  const Plan plan = make_plan(request);
  EXPECT_THAT(validate(plan), IsEmpty());
  EXPECT_LE(max_over_mean(plan, &ServerLoad::time_ns), 1.02);
  EXPECT_GT(max_over_mean(plan), 1.02);  // pairs of short documents take longer
}

TEST(SchedulerBalanced, ends_where_prices_of_parts_do_not_add_up_to_that_of_the_whole) {
  // Two servers gave the same blocks to each other for ever.
  PlanRequest request = testing::request_for({128, 1886, 1920, 3200, 5056, 4864, 1473, 1649, 1478,
                                              1722, 667, 2606, 3462, 5570, 0, 5120, 743},
                                             2, "balanced", 1'000);
  request.cluster.capacity = {4, 6, 4, 9, 3};
  request.profile = std::make_shared<const AttentionProfile>(testing::small_profile());
  for (const bool split_kv : {false, true}) {
    request.options.split_kv = split_kv;
    const Plan plan = make_plan(request);
    EXPECT_THAT(validate(plan, {.profile = request.profile.get()}), IsEmpty());
    EXPECT_LE(summarize(plan).max_over_share, 1.05);  // blocks are too coarse for .001
  }
}

TEST(SchedulerBalanced, no_server_receives_much_more_than_the_longest_documents_keys) {
  // One idle server between many long documents that are all too heavy where they live.
  std::vector<int64_t> lengths(24, 131'072);
  for (int i = 0; i < 8; ++i) lengths.insert(lengths.end(), 64, 2048);
  const Plan plan = make_plan(balanced(lengths, 32));
  EXPECT_LE(max_over_mean(plan), 1.02);
  EXPECT_LE(largest(plan, &ServerLoad::receive_bytes), 4 * 131'072 * plan.shape.kv_token_bytes());
}

}  // namespace
}  // namespace distca
