#include "distca/plan/layout_sequential.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"
#include "distca/plan/plan_testing.h"
#include "distca/plan/validate.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::k1K;
using testing::request_for;

TEST(SequentialLayout, a_document_that_crosses_workers_is_cut_as_head_and_tail) {
  // It is the second example in the released planner's source.
  const Layout layout = sequential_layout(
      request_for({32 * k1K, 8 * k1K, 8 * k1K, 4 * k1K, 4 * k1K, 4 * k1K, 4 * k1K}, 4));
  EXPECT_THAT(layout.workers[0],
              ElementsAre(Segment{0, {0, 8 * k1K}}, Segment{0, {24 * k1K, 32 * k1K}}));
  EXPECT_THAT(layout.workers[1], ElementsAre(Segment{0, {8 * k1K, 24 * k1K}}));
  EXPECT_THAT(layout.workers[2], ElementsAre(Segment{1, {0, 8 * k1K}}, Segment{2, {0, 8 * k1K}}));
  EXPECT_EQ(layout.workers[3].size(), 4u);
  const Plan plan = make_plan(request_for({32 * k1K, 32 * k1K}, 4, "local"));
  for (const ServerLoad& load : plan.load) EXPECT_EQ(load.pairs, 268'443'648);
}

TEST(SequentialLayout, every_worker_holds_the_mean_to_within_128) {
  Random random(2);
  for (int trial = 0; trial < 400; ++trial) {
    const int workers = 1 + static_cast<int>(random.below(9));
    const PlanRequest request = request_for(testing::random_lengths(random), workers);
    const Layout layout = sequential_layout(request);
    const int64_t total = request.nano_batch.num_tokens();
    int64_t most = 0;
    int64_t least = total;
    for (int worker = 0; worker < workers; ++worker) {
      const int64_t tokens = layout.num_tokens(worker);
      EXPECT_LT(std::abs(tokens * workers - total), 128 * workers);
      most = std::max(most, tokens);
      least = std::min(least, tokens);
    }
    EXPECT_LT(most - least, 256);
  }
}

TEST(SequentialLayout, every_token_has_one_home_and_cuts_are_allowed) {
  Random random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const int workers = 1 + static_cast<int>(random.below(9));
    const Plan plan = make_plan(request_for(testing::random_lengths(random), workers, "local"));
    EXPECT_THAT(validate(plan), IsEmpty());
  }
}

TEST(SequentialLayout, nothing_one_token_and_fewer_blocks_than_workers_all_work) {
  const Layout empty = sequential_layout(request_for({}, 3));
  EXPECT_THAT(empty.workers, ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  const Layout one = sequential_layout(request_for({1}, 3));
  EXPECT_EQ(one.num_tokens(0) + one.num_tokens(1) + one.num_tokens(2), 1);
  const Layout few = sequential_layout(request_for({300}, 7));
  int64_t tokens = 0;
  for (int worker = 0; worker < 7; ++worker) tokens += few.num_tokens(worker);
  EXPECT_EQ(tokens, 300);
}

TEST(SequentialLayout, too_many_tokens_are_refused_with_the_numbers) {
  PlanRequest request = request_for({1000, 1001}, 2);
  request.cluster.max_tokens_per_worker = 1000;
  try {
    make_plan(request);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPlan);
    EXPECT_THAT(error.what(), HasSubstr("2001 tokens do not fit 2 workers of at most 1000 tokens"));
  }
  request.cluster.max_tokens_per_worker = 1001;
  EXPECT_THAT(validate(make_plan(request)), IsEmpty());
}

}  // namespace
}  // namespace distca
