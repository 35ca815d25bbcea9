#include "bench/step_figures.h"

#include <gmock/gmock.h>

namespace distca::bench {
namespace {

using ::testing::ElementsAre;

TEST(BatchLengths, are_counted_in_tokens_targets_and_causal_pairs) {
  const BatchLengths batch = {{3, 1}, {4}};
  EXPECT_EQ(num_tokens(batch), 8);
  EXPECT_EQ(num_targets(batch), 5);
  EXPECT_EQ(num_pairs(batch), 6 + 1 + 10);
}

TEST(BatchLengths, merge_into_one_nano_batch_in_order) {
  EXPECT_THAT(merged({{3, 1}, {}, {4}}), ElementsAre(ElementsAre(3, 1, 4)));
}

TEST(StepFigures, last_from_the_first_ranks_begin_to_the_last_ranks_end) {
  const std::vector<PlayedStep> ranks = {{.begin_s = 10.0, .computed_s = 12, .end_s = 13.5},
                                         {.begin_s = 10.1, .computed_s = 12, .end_s = 14.0}};
  EXPECT_DOUBLE_EQ(figures_of(ranks).seconds, 4.0);
}

TEST(StepFigures, count_waits_for_exchanges_and_for_the_later_rank_as_idle) {
  // Rank 0 waits 0.5 s in exchanges and 1 s for rank 1, which waits for nobody; what the sum itself
  // takes after both have come is no idle time.
  const std::vector<PlayedStep> ranks = {
      {.begin_s = 0, .computed_s = 2, .end_s = 5, .waited_s = 0.5, .processor_s = 3},
      {.begin_s = 0, .computed_s = 3, .end_s = 5, .processor_s = 5}};
  EXPECT_DOUBLE_EQ(figures_of(ranks).idle_share, 1.5 / (2 * 5));
  EXPECT_DOUBLE_EQ(figures_of(ranks).core_idle_share, 2.0 / (2 * 5));
}

TEST(StepFigures, add_the_losses_of_all_ranks) {
  const std::vector<PlayedStep> ranks = {{.end_s = 1, .loss_sum = 2}, {.end_s = 1, .loss_sum = 5}};
  EXPECT_DOUBLE_EQ(figures_of(ranks).loss, 7);
}

TEST(Fastest, is_the_arm_with_the_lowest_median_and_the_first_of_equals) {
  EXPECT_EQ(fastest({{3, 3, 3}, {2, 2, 90}, {1, 4, 4}}), 1U);
  EXPECT_EQ(fastest({{2, 2}, {2, 2}}), 0U);
}

TEST(InterleavedSteps, play_every_arm_in_every_round_beginning_with_another) {
  std::vector<int> order;
  std::vector<ArmRun> arms;
  for (int arm = 0; arm < 3; ++arm) {
    arms.push_back([&order, arm](int round) {
      order.push_back(arm);
      return StepFigures{.seconds = 10.0 * round + arm};
    });
  }
  const auto figures = interleaved_steps(arms, 2);
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 1, 2, 0, 2, 0, 1));
  EXPECT_THAT(seconds_of(figures[2]), ElementsAre(2, 12)) << "round -1 must not count";
}

}  // namespace
}  // namespace distca::bench
