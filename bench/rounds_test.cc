#include "bench/rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"

namespace distca::bench {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(Rounds, every_contender_runs_in_every_round_and_the_order_turns) {
  std::vector<int> order;
  const auto contender = [&](int name) {
    return Contender{.flops = 3e9, .seconds = [&order, name] {
                       order.push_back(name);
                       return 1.0;
                     }};
  };
  const std::vector<Rates> rates = interleaved_rates({contender(0), contender(1)}, 3, 0.5);
  EXPECT_THAT(order, ElementsAre(0, 1, 0, 1, 1, 0, 0, 1));  // once each first
  EXPECT_THAT(rates, ElementsAre(Rates(3, 3.0), Rates(3, 3.0)));
}

TEST(Rounds, short_work_is_repeated_to_fill_the_time) {
  int calls = 0;
  const Contender contender{.flops = 1e6, .seconds = [&] { return ++calls, 1e-3; }};
  EXPECT_THAT(interleaved_rates({contender}, 1, 10e-3)[0], Each(::testing::DoubleNear(1, 1e-9)));
  EXPECT_EQ(calls, 2 + 1 + 10);
}

TEST(Rounds, an_outlier_moves_neither_median_nor_interval) {
  Rates values{1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.0};
  values.push_back(50);
  const Estimate found = estimate(values);
  EXPECT_DOUBLE_EQ(found.median, 1);
  EXPECT_GE(found.low, 0.99);
  EXPECT_LE(found.high, 1.01);
}

TEST(Rounds, the_interval_widens_with_the_spread) {
  Rates narrow, wide;
  for (int i = -7; i <= 7; ++i) {
    narrow.push_back(1 + 0.001 * i);
    wide.push_back(1 + 0.01 * i);
  }
  const Estimate a = estimate(narrow), b = estimate(wide);
  EXPECT_LT(a.low, 1);
  EXPECT_GT(a.high, 1);
  EXPECT_NEAR(b.high - b.low, 10 * (a.high - a.low), 1e-9);
}

TEST(Rounds, ratios_are_taken_within_a_round) {
  const Estimate found = estimate_ratio({10, 20, 40}, {5, 10, 20});
  EXPECT_DOUBLE_EQ(found.median, 2);
  EXPECT_DOUBLE_EQ(found.low, 2);
  EXPECT_DOUBLE_EQ(found.high, 2);
  EXPECT_THAT(quotient({8, 15}, {4, 5}), ElementsAre(2, 3));
  EXPECT_THROW(estimate({}), CheckFailure);
}

}  // namespace
}  // namespace distca::bench
