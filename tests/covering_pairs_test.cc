#include "tests/covering_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "distca/base/random.h"

namespace distca {
namespace {

/// [dimension] The values of some dimensions. -1 stands for a dimension that is none of them.
using Tuple = std::vector<int>;

/// visit(tuple) for all sets of `strength` values of a row.
template <typename Visit>
void for_each_tuple(const std::vector<int>& row, int strength, const Visit& visit) {
  std::vector<bool> chosen(row.size());
  std::fill_n(chosen.begin(), strength, true);
  do {
    Tuple tuple(row.size(), -1);
    for (size_t d = 0; d < row.size(); ++d) {
      if (chosen[d]) tuple[d] = row[d];
    }
    visit(tuple);
  } while (std::prev_permutation(chosen.begin(), chosen.end()));
}

std::set<Tuple> tuples_of(const std::vector<std::vector<int>>& rows, int strength) {
  std::set<Tuple> tuples;
  for (const std::vector<int>& row : rows)
    for_each_tuple(row, strength, [&](const Tuple& tuple) { tuples.insert(tuple); });
  return tuples;
}

/// All values of the dimensions, with every other one.
std::set<Tuple> all_tuples(const std::vector<int>& sizes, int strength) {
  std::set<Tuple> tuples;
  for_each_tuple(sizes, strength, [&](const Tuple& counts) {
    std::vector<Tuple> grown = {{}};
    for (const int count : counts) {
      std::vector<Tuple> next;
      for (const Tuple& begin : grown) {
        for (int value = count < 0 ? -1 : 0; value < count || value < 0; ++value) {
          next.push_back(begin);
          next.back().push_back(value);
        }
      }
      grown = std::move(next);
    }
    tuples.insert(grown.begin(), grown.end());
  });
  return tuples;
}

TEST(CoveringPairs, every_tuple_of_values_occurs_and_none_that_does_not_exist) {
  Random random(3);
  for (int trial = 0; trial < 100; ++trial) {
    const int strength = 2 + trial % 3;
    std::vector<int> sizes(strength + random.below(4));
    for (int& size : sizes) size = 1 + static_cast<int>(random.below(strength == 4 ? 3 : 6));
    EXPECT_EQ(tuples_of(covering_rows(sizes, strength), strength), all_tuples(sizes, strength))
        << "trial " << trial;
  }
}

TEST(CoveringPairs, there_are_few_of_them) {
  const std::vector<int> sizes = {24, 9, 8, 5, 3, 2};
  const auto rows = covering_pairs(sizes);
  EXPECT_GE(rows.size(), 24u * 9) << "each of the two largest dimensions' pairs needs its own";
  EXPECT_LE(rows.size(), 24u * 9 + 24) << "of " << 24 * 9 * 8 * 5 * 3 * 2;
  const auto triples = covering_rows({7, 7, 5, 5, 3, 3, 2, 2, 2}, 3);
  EXPECT_GE(triples.size(), 7u * 7 * 5);
  EXPECT_LE(triples.size(), 7u * 7 * 5 * 5 / 4) << "of " << 7 * 7 * 5 * 5 * 3 * 3 * 2 * 2 * 2;
}

TEST(CoveringPairs, every_row_adds_a_tuple) {
  for (const int strength : {2, 3}) {
    std::set<Tuple> seen;
    for (const std::vector<int>& row : covering_rows({5, 4, 3, 3, 2}, strength)) {
      const size_t before = seen.size();
      seen.merge(tuples_of({row}, strength));
      EXPECT_GT(seen.size(), before);
    }
  }
}

}  // namespace
}  // namespace distca
