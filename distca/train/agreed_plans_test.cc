#include "distca/train/agreed_plans.h"

#include <gtest/gtest.h>

#include "distca/comm/collectives.h"
#include "distca/comm/thread_group.h"

namespace distca {
namespace {

TEST(compare_plans, sums_what_the_ranks_count) {
  run_ranks(3, {.timeout_s = 30}, [](Communicator& comm) {
    std::optional<Error> failure;
    const PlanWord sum = compare_plans(
        comm, {.hash = 7, .bad_tokens = comm.rank(), .targets_left_out = 1}, &failure);
    EXPECT_FALSE(failure);
    EXPECT_EQ(sum.bad_tokens, 3);
    EXPECT_EQ(sum.targets_left_out, 3);
  });
}

TEST(compare_plans, all_ranks_get_the_failure_of_the_first_that_has_one) {
  run_ranks(4, {.timeout_s = 30}, [](Communicator& comm) {
    std::optional<Error> failure;
    if (comm.rank() == 2) failure = Error(ErrorKind::kPlan, "does not fit");
    if (comm.rank() == 3) failure = Error(ErrorKind::kData, "a bad token");
    compare_plans(comm, {.hash = static_cast<uint64_t>(comm.rank())}, &failure);
    ASSERT_TRUE(failure);
    EXPECT_STREQ(failure->what(), "does not fit");
    EXPECT_EQ(failure->kind(), ErrorKind::kPlan);
    // They can go on to talk with each other.
    EXPECT_EQ(all_gather(comm, comm.rank(), "a test")[1], 1);
  });
}

TEST(AgreedPlans, give_a_batch_to_all_ranks_or_the_failure_of_one) {
  run_ranks(3, {.timeout_s = 30}, [](Communicator& comm) {
    int planned = 0;
    AgreedPlans plans(
        [&](const Speeds&) -> std::optional<PlannedBatch> {
          if (++planned == 2 && comm.rank() == 1) throw Error(ErrorKind::kData, "a bad token");
          PlannedBatch batch{.bad_tokens = comm.rank(), .targets_left_out = 1};
          batch.figures.targets = 10;
          return batch;
        },
        {}, comm);
    const auto first = plans.next(ProgramRequest::Kind::kTrain, {});
    ASSERT_TRUE(first);
    EXPECT_EQ(first->figures.bad_tokens, 0 + 1 + 2);
    EXPECT_EQ(first->figures.targets, 10 - 3);
    EXPECT_FALSE(plans.failure());
    EXPECT_FALSE(plans.next(ProgramRequest::Kind::kTrain, {}));
    EXPECT_STREQ(plans.failure().value().what(), "a bad token");
  });
}

TEST(AgreedPlans, what_a_rank_fails_in_otherwise_is_reported_too) {
  run_ranks(2, {.timeout_s = 30}, [](Communicator& comm) {
    AgreedPlans plans([](const Speeds&) { return PlannedBatch(); }, {}, comm);
    if (comm.rank() == 0) plans.fail(Error(ErrorKind::kIo, "no room"));
    EXPECT_FALSE(plans.next(ProgramRequest::Kind::kTrain, {}));
    EXPECT_EQ(plans.failure().value().kind(), ErrorKind::kIo);
  });
}

TEST(compare_plans, another_plan_is_a_bug) {
  EXPECT_THROW(run_ranks(2, {.timeout_s = 30},
                         [](Communicator& comm) {
                           std::optional<Error> failure;
                           compare_plans(comm, {.hash = static_cast<uint64_t>(comm.rank())},
                                         &failure);
                         }),
               CheckFailure);
}

}  // namespace
}  // namespace distca
