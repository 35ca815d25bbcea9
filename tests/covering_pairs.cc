#include "tests/covering_pairs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <set>
#include <tuple>

#include "distca/base/error.h"

namespace distca {

std::vector<std::vector<int>> covering_pairs(const std::vector<int>& sizes) {
  DISTCA_CHECK(sizes.size() >= 2 && *std::ranges::min_element(sizes) >= 1,
               "pairs need two dimensions with a value each");
  // Greedy: a row takes, dimension by dimension from the largest, the value that closes most pairs
  // with those taken; among equals the one with most pairs left to close.
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Pairs that no row has yet, both ways round: value x of dimension a with value y of dimension b.
  std::set<std::tuple<size_t, int, size_t, int>> open;
  for (const size_t a : order) {
    for (const size_t b : order) {
      for (int pair = 0; a != b && pair < sizes[a] * sizes[b]; ++pair)
        open.insert({a, pair / sizes[b], b, pair % sizes[b]});
    }
  }
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::vector<int>> rows;
  for (;;) {
    std::vector<int> row(sizes.size(), 0);
    int64_t closed = 0;
    for (size_t taken = 0; taken < order.size(); ++taken) {
      const size_t dimension = order[taken];
      int64_t most = -1, most_left = -1;
      for (int value = 0; value < sizes[dimension]; ++value) {
        int64_t closes = 0;
        for (size_t i = 0; i < taken; ++i)
          closes += open.contains({dimension, value, order[i], row[order[i]]}) ? 1 : 0;
        const int64_t left = std::distance(open.lower_bound({dimension, value, 0, 0}),
                                           open.lower_bound({dimension, value + 1, 0, 0}));
        if (closes < most || (closes == most && left <= most_left)) continue;
        most = closes;
        most_left = left;
        row[dimension] = value;
      }
      closed += most;
    }
    // The first value of a row has pairs left if any has: its dimension meets all others.
    if (closed == 0) return rows;
    for (const size_t a : order) {
      for (const size_t b : order) open.erase({a, row[a], b, row[b]});
    }
    rows.push_back(std::move(row));
  }
}

}  // namespace distca
