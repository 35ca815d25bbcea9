#include "bench/uneven_figures.h"

#include <gtest/gtest.h>

namespace distca::bench {
namespace {

TEST(UnevenFigures, less_speed_takes_longer_in_proportion) {
  EXPECT_EQ(ideal_seconds({3, 6}, 2, 1.5), (Rates{4, 8}));
}

TEST(UnevenFigures, the_best_split_has_the_lowest_median) {
  const std::vector<Split> splits = {{.name = "a", .seconds = {1, 5, 6}},
                                     {.name = "b", .seconds = {4, 4, 100}},
                                     {.name = "c", .seconds = {5, 5, 5}}};
  EXPECT_EQ(best_of(splits).name, "b");
}

TEST(UnevenFigures, a_split_a_twentieth_slower_than_the_best_is_judged_by_the_bar) {
  const auto split = [](double slower) {
    Split made;
    for (int round = 0; round < kLeastRounds; ++round)
      made.seconds.push_back(slower * (1 + 0.1 * round));
    return made;
  };
  const auto verdict = [&](double slower) {
    return reweighted_figure(split(slower), split(slower), split(1)).verdict();
  };
  EXPECT_EQ(verdict(1), Decision::kReached);
  EXPECT_EQ(verdict(1.04), Decision::kReached);
  EXPECT_EQ(verdict(1.06), Decision::kMissed);
}

}  // namespace
}  // namespace distca::bench
