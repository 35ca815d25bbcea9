#include "distca/base/statistics.h"

#include <gtest/gtest.h>

namespace distca {
namespace {

TEST(Statistics, the_median_is_the_middle_or_the_mean_of_the_middle_two) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({}), 0);
}

TEST(Statistics, the_middle_half_leaves_out_the_least_and_the_largest_quarter) {
  const std::vector<double> values = {5, 90, 1, 2, 3, 4, 80, -7};
  EXPECT_EQ(mean_at(values, middle_half(values)), (2 + 3 + 4 + 5) / 4.);
  EXPECT_EQ(mean_at({1, 2, 6}, middle_half({1, 2, 6})), 3);
  EXPECT_EQ(mean_at({}, middle_half({})), 0);
}

}  // namespace
}  // namespace distca
