#include "distca/plan/plain_packing_time.h"

#include <gmock/gmock.h>

#include "distca/plan/plan_testing.h"

namespace distca {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kMs = 1'000'000;  // ns
constexpr double kRounding = 1e-12;

/// Two workers of 100 tokens, which balancing has given 300 units of load each. Rank 0 took 2 ms a
/// token and 1 ms a unit, rank 1 half as long for a unit; it waited for rank 0 at the end.
std::vector<RankSample> balanced_step() {
  return {{.linear_ns = 210 * kMs,
           .attention_ns = 300 * kMs,
           .tokens = 100,
           .load = 300,
           .exchange_ns = 10 * kMs,
           .waited_ns = 40 * kMs},
          {.linear_ns = 200 * kMs,
           .attention_ns = 150 * kMs,
           .tokens = 100,
           .load = 300,
           .exchange_ns = 0,
           .waited_ns = 100 * kMs}};
}

TEST(SecondsWaited, are_those_for_messages_and_for_the_last_rank) {
  // The last one is done after 550 ms; rank 1 after 450.
  EXPECT_THAT(seconds_waited(balanced_step()),
              ElementsAre(DoubleNear(0.040, kRounding), DoubleNear(0.200, kRounding)));
  EXPECT_THAT(seconds_waited({}), IsEmpty());
}

TEST(PlainPacking, lasts_as_long_as_its_slowest_worker_at_the_ranks_own_rates) {
  // 100 x 2 + 500 x 1 and 100 x 2 + 100 / 2 ms instead of 550: the exchange is not needed.
  const PackedWork packed = {{{.tokens = 100, .load = 500}, {.tokens = 100, .load = 100}}};
  EXPECT_NEAR(plain_packing_adds_s(balanced_step(), packed), 0.150, kRounding);
  // With the load on the faster rank, 100 x 2 + 500 / 2 ms: shorter than balanced by pairs.
  const PackedWork other = {{{.tokens = 100, .load = 100}, {.tokens = 100, .load = 500}}};
  EXPECT_NEAR(plain_packing_adds_s(balanced_step(), other), -0.100, kRounding);
}

TEST(PlainPacking, waits_for_the_slowest_in_each_nano_batch) {
  const std::vector<RankSample> first = {{.tokens = 50, .load = 500}, {.tokens = 50, .load = 100}};
  const std::vector<RankSample> second = {{.tokens = 50, .load = 0}, {.tokens = 50, .load = 400}};
  // 100 + 500 ms on rank 0, then 100 + 200 on rank 1.
  EXPECT_NEAR(plain_packing_adds_s(balanced_step(), {first, second}), 0.900 - 0.550, kRounding);
}

TEST(PlainPacking, of_plain_packing_itself_adds_nothing) {
  const std::vector<RankSample> ranks = {
      {.linear_ns = 200 * kMs, .attention_ns = 500 * kMs, .tokens = 100, .load = 500},
      {.linear_ns = 200 * kMs, .attention_ns = 100 * kMs, .tokens = 100, .load = 100}};
  const PackedWork packed = {{{.tokens = 100, .load = 500}, {.tokens = 100, .load = 100}}};
  EXPECT_NEAR(plain_packing_adds_s(ranks, packed), 0, kRounding);
}

TEST(PlainPacking, a_rank_that_did_next_to_nothing_says_nothing_about_its_rate) {
  std::vector<RankSample> ranks = balanced_step();
  ranks[1].load = 1;  // 150 ms a unit
  // 450 ms for 301 units are the mean.
  const PackedWork packed = {{{.tokens = 100, .load = 0}, {.tokens = 100, .load = 602}}};
  EXPECT_NEAR(plain_packing_adds_s(ranks, packed), 0.200 + 0.900 - 0.550, kRounding);
  for (RankSample& rank : ranks) rank = {.linear_ns = 10 * kMs};  // nobody has had anything
  EXPECT_NEAR(plain_packing_adds_s(ranks, packed), -0.010, kRounding);
}

Plan balanced_plan(const std::vector<int64_t>& lengths, int workers) {
  return make_plan(testing::request_for(lengths, workers, "balanced"));
}

TEST(PackedWork, is_that_of_documents_in_order_computed_where_they_lie) {
  const std::vector<Plan> plans = {balanced_plan({1024, 512, 512}, 2),
                                   balanced_plan({256, 256, 512}, 2)};
  const auto pairs = [](int64_t length) { return length * (length + 1) / 2; };
  const PackedWork alone = packed_work(plans, nullptr, 1);
  ASSERT_THAT(alone, SizeIs(2));
  EXPECT_EQ(alone[0][0].tokens, 1024);
  EXPECT_EQ(alone[0][0].load, pairs(1024));
  EXPECT_EQ(alone[0][1].load, 2 * pairs(512));
  EXPECT_EQ(alone[1][0].load, 2 * pairs(256));
  const PackedWork paired = packed_work(plans, nullptr, 2);
  ASSERT_THAT(paired, SizeIs(1));
  EXPECT_EQ(paired[0][0].tokens, 1536);
  EXPECT_EQ(paired[0][0].load, pairs(1024) + 2 * pairs(256));
  EXPECT_EQ(paired[0][1].load, 3 * pairs(512));
}

TEST(PackedWork, counts_load_as_plans_do) {
  PlanRequest request = testing::request_for({1024, 512, 512}, 2, "local");
  request.profile = profile_by_name("h200");
  const Plan local = make_plan(request);
  const PackedWork packed = packed_work(std::span(&local, 1), request.profile, 1);
  for (int worker = 0; worker < 2; ++worker)
    EXPECT_EQ(packed[0][worker].load, local.load[worker].time_ns);
}

TEST(PackedWork, is_left_out_where_plain_packing_is_no_other_way_to_do_the_same) {
  const std::vector<Plan> one = {balanced_plan({1024, 512}, 1)};
  EXPECT_THAT(packed_work(one, nullptr, 1), IsEmpty());
  PlanRequest request = testing::request_for({1024, 512}, 2, "balanced");
  request.cluster.capacity.push_back(1);
  const std::vector<Plan> dedicated = {make_plan(request)};
  EXPECT_THAT(packed_work(dedicated, nullptr, 1), IsEmpty());
  EXPECT_THAT(packed_work({}, nullptr, 1), IsEmpty()) << "a pipeline's are elsewhere";
}

}  // namespace
}  // namespace distca
