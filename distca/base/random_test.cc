#include "distca/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "distca/base/error.h"

namespace distca {
namespace {

// Batches of an old run must come back on every machine: these values may never change.
// The first two were computed once more by an independent program.
TEST(Random, values_are_pinned) {
  Random random(1, 2);
  EXPECT_EQ(random.next(), 6851237923183208601u);
  EXPECT_EQ(random.next(), 4317682303100657501u);
  std::vector<int> items(8);
  std::iota(items.begin(), items.end(), 0);
  random.shuffle(std::span(items));
  EXPECT_EQ(items, (std::vector<int>{5, 2, 0, 6, 1, 3, 4, 7}));
}

TEST(Random, seeds_and_streams_differ) {
  EXPECT_NE(Random(1, 2).next(), Random(2, 1).next());
  EXPECT_NE(Random(1, 0).next(), Random(1, 1).next());
  EXPECT_EQ(Random(7, 3).next(), Random(7, 3).next());
}

TEST(Random, integers_below_a_bound_are_even) {
  constexpr int kDraws = 60'000;
  constexpr int kBound = 6;
  std::vector<int> counts(kBound, 0);
  Random random(5);
  for (int draw = 0; draw < kDraws; ++draw) ++counts[random.below(kBound)];
  // Binomial(60000, 1/6) has a standard deviation of 91; the seed is fixed, six of them is
  // generous.
  for (int count : counts) EXPECT_NEAR(count, kDraws / kBound, 6 * 91);
}

TEST(Random, a_bound_above_half_of_the_range_rejects_what_would_be_biased) {
  constexpr uint64_t kBound = (1ull << 63) + 1;
  Random random(11);
  for (int draw = 0; draw < 1000; ++draw) EXPECT_LT(random.below(kBound), kBound);
  EXPECT_THROW(random.below(0), CheckFailure);
}

TEST(Random, uniform_lies_in_the_half_open_unit_interval) {
  Random random(3);
  double low = 1, high = 0;
  for (int draw = 0; draw < 10'000; ++draw) {
    const double value = random.uniform();
    low = std::min(low, value);
    high = std::max(high, value);
  }
  EXPECT_GE(low, 0);
  EXPECT_LT(low, 0.01);
  EXPECT_GT(high, 0.99);
  EXPECT_LT(high, 1);
}

TEST(Random, shuffle_reaches_every_order) {
  Random random(9);
  std::vector<std::vector<int>> seen;
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<int> items{0, 1, 2};
    random.shuffle(std::span(items));
    if (std::ranges::find(seen, items) == seen.end()) seen.push_back(items);
  }
  EXPECT_EQ(seen.size(), 6u);
}

}  // namespace
}  // namespace distca
