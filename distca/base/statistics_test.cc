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

}  // namespace
}  // namespace distca
