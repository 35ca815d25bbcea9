#include "distca/plan/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"
#include "distca/plan/plan_summary.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::k1K;
using testing::refusal;
using testing::request_for;
using testing::workload_request;

class Workloads : public ::testing::TestWithParam<const char*> {};

TEST_P(Workloads, greedy_keeps_its_bound_and_is_valid) {
  const Plan plan = make_plan(workload_request(GetParam()));
  EXPECT_GT(max_over_mean(plan.cluster, testing::home_load(plan)),
            1.8);  // there is something to do
  EXPECT_LE(max_over_mean(plan), 1.05);
  EXPECT_THAT(validate(plan), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, Workloads,
                         ::testing::Values("pretrain_8x128k_0", "pretrain_64x128k_1",
                                           "pretrain_64x128k_2", "prolong_64x128k_0",
                                           "pretrain_512x128k_0"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Scheduler, greedy_keeps_a_tight_bound_too) {
  PlanRequest request = workload_request("pretrain_64x128k_2");
  request.options.tolerance_ppm = 1000;
  const Plan plan = make_plan(request);
  EXPECT_LE(max_over_mean(plan), 1.001);
  EXPECT_THAT(validate(plan), IsEmpty());
}

TEST(Scheduler, the_same_request_gives_the_same_bytes_of_json) {
  const PlanRequest request = workload_request("prolong_64x128k_0");
  EXPECT_EQ(plan_to_json(make_plan(request)), plan_to_json(make_plan(request)));
}

TEST(Scheduler, greedy_on_the_papers_example) {
  // The first example in the released planner's source: 16K, 2 x 8K, 4 x 4K, 8 x 2K tokens.
  std::vector<int64_t> lengths{16 * k1K, 8 * k1K, 8 * k1K};
  lengths.insert(lengths.end(), 4, 4 * k1K);
  lengths.insert(lengths.end(), 8, 2 * k1K);
  constexpr int64_t kMean = 62'922'752;

  const Plan exact = make_plan(request_for(lengths, 4, "greedy", 0));
  for (const ServerLoad& load : exact.load) {
    EXPECT_LE(std::abs(load.pairs - kMean), 128 * (16 * k1K + 1));  // cuts at multiples of 128
  }
  const Plan tenth = make_plan(request_for(lengths, 4, "greedy", 100'000));
  for (const ServerLoad& load : tenth.load) EXPECT_LE(load.pairs, kMean + kMean / 10);
  EXPECT_EQ(tenth.load[1].pairs, 67'117'056);  // 1.067 of the mean: stays as it is
  EXPECT_EQ(tenth.load[1].send_bytes + tenth.load[1].receive_bytes, 0);
}

TEST(Scheduler, local_computes_every_query_where_it_lives) {
  const Plan plan = make_plan(request_for({5000, 77, 1290}, 3, "local"));
  const std::vector<int64_t> home = testing::home_load(plan);
  for (size_t server = 0; server < plan.load.size(); ++server) {
    EXPECT_EQ(plan.load[server].pairs, home[server]);
    EXPECT_EQ(plan.load[server].o_send_bytes, 0);
  }
}

TEST(Scheduler, random_batches_give_valid_plans) {
  Random random(5);
  for (int trial = 0; trial < 400; ++trial) {
    PlanRequest request =
        request_for(testing::random_lengths(random), 1 + static_cast<int>(random.below(8)));
    request.options.tolerance_ppm = static_cast<int64_t>(random.below(3)) * 50'000;
    for (int dedicated = static_cast<int>(random.below(3)); dedicated > 0; --dedicated) {
      request.cluster.capacity.push_back(1);
    }
    for (int64_t& capacity : request.cluster.capacity)
      capacity = 1 + static_cast<int64_t>(random.below(5));
    const Plan plan = make_plan(request);
    EXPECT_THAT(validate(plan), IsEmpty());
    EXPECT_LE(max_over_mean(plan), max_over_mean(plan.cluster, testing::home_load(plan)));
  }
}

TEST(Scheduler, shapes_of_batches_that_break_planners) {
  const std::vector<std::vector<int64_t>> batches = {
      {}, {1}, {127}, {129, 1}, std::vector<int64_t>(16, 1024), {200'001}, {65'536, 1, 1, 1}};
  for (const auto& lengths : batches) {
    for (const int workers : {1, 2, 3, 7, 40}) {
      const Plan plan = make_plan(request_for(lengths, workers));
      EXPECT_THAT(validate(plan), IsEmpty()) << lengths.size() << " documents, " << workers;
      EXPECT_LE(max_over_mean(plan), max_over_mean(plan.cluster, testing::home_load(plan)));
    }
  }
  EXPECT_LE(max_over_mean(make_plan(request_for({200'001}, 40))), 1.05);
}

TEST(Scheduler, load_follows_capacity) {
  PlanRequest request = request_for(std::vector<int64_t>(40, 4096), 4);
  request.cluster.capacity = {1, 2, 3, 4, 10};  // server 4 is dedicated
  const Plan plan = make_plan(request);
  EXPECT_THAT(validate(plan), IsEmpty());
  EXPECT_LE(max_over_mean(plan), 1.05);
  EXPECT_GT(plan.load[4].pairs, 4 * plan.load[0].pairs);
}

TEST(Scheduler, a_server_of_capacity_0_ends_with_no_load) {
  PlanRequest request = request_for({9000, 300, 1, 4000}, 2);
  request.cluster.capacity = {0, 1, 1};
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.load[0].pairs, 0);
  EXPECT_LE(max_over_mean(plan), 1.05);
  request.nano_batch = NanoBatch::from_lengths({1});
  EXPECT_EQ(make_plan(request).load[0].pairs, 0);
}

TEST(Scheduler, an_unknown_name_is_refused_with_the_nearest_known) {
  EXPECT_THAT(refusal(request_for({10}, 1, "greddy")),
              AllOf(HasSubstr("scheduler \"greddy\""), HasSubstr("did you mean greedy?"),
                    HasSubstr("local")));
  PlanRequest request = request_for({10}, 1);
  request.options.layout = "x";
  EXPECT_THAT(refusal(request),
              HasSubstr("unknown layout \"x\": must be one of balanced, sequential"));
  request = request_for({10}, 2);
  request.cluster.capacity = {1};
  EXPECT_THAT(refusal(request), HasSubstr("1 capacities for 2 workers"));
  request = request_for({-1}, 1);
  EXPECT_THAT(refusal(request), HasSubstr("document 0 has -1 tokens"));
  request = request_for({10}, 1, "greedy", -1);
  EXPECT_THAT(refusal(request), HasSubstr("tolerance"));
}

TEST(Scheduler, times_that_do_not_add_up_are_refused) {
  PlanRequest request = request_for({4096, 4096}, 2);
  AttentionProfile profile = h200_profile();
  request.profile = std::make_shared<AttentionProfile>(profile);
  EXPECT_EQ(refusal(request), "no error");
  for (auto* times : {&profile.forward_ns, &profile.backward_ns}) {
    for (int64_t& ns : *times) ns = ns > 0 ? int64_t{1} << 50 : 0;
  }
  request.nano_batch = NanoBatch::from_lengths(std::vector<int64_t>(64, 65'536));
  request.profile = std::make_shared<AttentionProfile>(profile);
  EXPECT_THAT(refusal(request), HasSubstr("too long"));
}

TEST(Scheduler, a_link_that_carries_nothing_is_refused) {
  PlanRequest request = request_for({512}, 2);
  request.cluster.between = {.latency_ns = 0, .bytes_per_us = 1};
  EXPECT_EQ(refusal(request), "no error");
  request.cluster.between.bytes_per_us = 0;
  EXPECT_THAT(refusal(request), HasSubstr("link between: 0 bytes per microsecond"));
  request.cluster.between.bytes_per_us = 1;
  request.cluster.inside.latency_ns = -1;
  EXPECT_THAT(refusal(request), HasSubstr("link inside: 50000 bytes per microsecond after -1 ns"));
}

}  // namespace
}  // namespace distca
