#include "distca/train/same_result.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace distca {
namespace {

at::Tensor row(std::vector<double> values) { return at::tensor(values, at::kDouble); }

TEST(SameResult, a_difference_is_a_share_of_the_largest_value) {
  EXPECT_EQ(difference(row({1, -4}), row({1, -4})), 0);
  EXPECT_EQ(difference(row({2, -4}), row({1, -4})), 0.25);
  EXPECT_EQ(difference(row({2, -4}).to(at::kFloat), row({1, -4})), 0.25);
  EXPECT_EQ(difference(row({0, 3}), row({0, 0})), 3) << "absolute beside zero";
}

TEST(SameResult, what_is_not_a_number_is_within_no_bound) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(difference(row({nan, 1}), row({1, 1}))));
  EXPECT_TRUE(std::isnan(difference(row({1, 1}), row({nan, 1}))));
  EXPECT_EQ(difference(row({infinity, 1}), row({1, 1})), infinity);
}

TEST(SameResult, bounds_follow_from_the_format_the_depth_and_the_sums) {
  EXPECT_EQ(format_bound(ScalarType::kFloat64, 2, 100), 1e-10);
  EXPECT_EQ(format_bound(ScalarType::kFloat64, 80, 1 << 20), 1e-10);
  EXPECT_DOUBLE_EQ(zero_bound(1e-10), 1e-12);
  // 4 (sqrt(100) 2^-24 + sqrt(3600) 2^-24), and with 2^-8 for the first.
  EXPECT_DOUBLE_EQ(format_bound(ScalarType::kFloat32, 2, 3600), 280 * 0x1p-24);
  EXPECT_DOUBLE_EQ(format_bound(ScalarType::kBFloat16, 2, 3600), 40 * 0x1p-8 + 240 * 0x1p-24);
  EXPECT_GT(format_bound(ScalarType::kBFloat16, 8, 3600),
            format_bound(ScalarType::kBFloat16, 2, 3600));
}

}  // namespace
}  // namespace distca
