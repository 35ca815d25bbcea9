#include "tests/covering_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "distca/base/random.h"

namespace distca {
namespace {

using Pair = std::tuple<size_t, int, size_t, int>;

std::set<Pair> all_pairs(const std::vector<int>& sizes) {
  std::set<Pair> pairs;
  for (size_t a = 0; a < sizes.size(); ++a) {
    for (size_t b = a + 1; b < sizes.size(); ++b) {
      for (int x = 0; x < sizes[a]; ++x) {
        for (int y = 0; y < sizes[b]; ++y) pairs.insert({a, x, b, y});
      }
    }
  }
  return pairs;
}

std::set<Pair> pairs_of(const std::vector<std::vector<int>>& rows) {
  std::set<Pair> pairs;
  for (const std::vector<int>& row : rows) {
    for (size_t a = 0; a < row.size(); ++a) {
      for (size_t b = a + 1; b < row.size(); ++b) pairs.insert({a, row[a], b, row[b]});
    }
  }
  return pairs;
}

TEST(CoveringPairs, every_pair_of_values_occurs_and_none_that_does_not_exist) {
  Random random(3);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<int> sizes(2 + random.below(7));
    for (int& size : sizes) size = 1 + static_cast<int>(random.below(8));
    EXPECT_EQ(pairs_of(covering_pairs(sizes)), all_pairs(sizes)) << "trial " << trial;
  }
}

TEST(CoveringPairs, there_are_few_of_them) {
  const std::vector<int> sizes = {24, 9, 8, 5, 3, 2};
  const auto rows = covering_pairs(sizes);
  EXPECT_GE(rows.size(), 24u * 9) << "each of the two largest dimensions' pairs needs its own";
  EXPECT_LE(rows.size(), 24u * 9 + 24) << "of " << 24 * 9 * 8 * 5 * 3 * 2;
}

TEST(CoveringPairs, every_row_adds_a_pair) {
  const auto rows = covering_pairs({5, 4, 3, 3, 2});
  std::set<Pair> seen;
  for (const std::vector<int>& row : rows) {
    const size_t before = seen.size();
    seen.merge(pairs_of({row}));
    EXPECT_GT(seen.size(), before);
  }
}

}  // namespace
}  // namespace distca
