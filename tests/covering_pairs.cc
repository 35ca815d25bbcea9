#include "tests/covering_pairs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "distca/base/error.h"

namespace distca {
namespace {

/// Which pairs of values no row has yet.
class OpenPairs {
 public:
  explicit OpenPairs(const std::vector<int>& sizes) : first_value_(sizes.size() + 1, 0) {
    std::partial_sum(sizes.begin(), sizes.end(), first_value_.begin() + 1);
    const auto values = static_cast<size_t>(first_value_.back());
    open_.assign(values * values, 0);
    for (size_t a = 0; a < sizes.size(); ++a) {
      for (size_t b = a + 1; b < sizes.size(); ++b) {
        for (int x = 0; x < sizes[a]; ++x) {
          for (int y = 0; y < sizes[b]; ++y) set(a, x, b, y, 1);
        }
      }
    }
  }

  bool open(size_t a, int x, size_t b, int y) const { return open_[index(a, x, b, y)] != 0; }
  void close(const std::vector<int>& row) {
    for (size_t a = 0; a < row.size(); ++a) {
      for (size_t b = a + 1; b < row.size(); ++b) set(a, row[a], b, row[b], 0);
    }
  }
  /// How many open pairs value x of dimension a still has.
  int64_t left(size_t a, int x) const {
    const auto values = static_cast<std::ptrdiff_t>(first_value_.back());
    const auto row = open_.begin() + (first_value_[a] + x) * values;
    return std::accumulate(row, row + values, int64_t{0});
  }

 private:
  size_t index(size_t a, int x, size_t b, int y) const {
    return static_cast<size_t>(first_value_[a] + x) * static_cast<size_t>(first_value_.back()) +
           static_cast<size_t>(first_value_[b] + y);
  }
  void set(size_t a, int x, size_t b, int y, uint8_t open) {
    open_[index(a, x, b, y)] = open_[index(b, y, a, x)] = open;
  }

  std::vector<int> first_value_;  // [dimension] number of its value 0 among all values
  std::vector<uint8_t> open_;     // [value, value]
};

}  // namespace

std::vector<std::vector<int>> covering_pairs(const std::vector<int>& sizes) {
  DISTCA_CHECK(sizes.size() >= 2 && *std::ranges::min_element(sizes) >= 1,
               "pairs need two dimensions with a value each");
  // Greedy: a row takes, dimension by dimension from the largest, the value that closes most pairs
  // with those taken; among equals the one with most pairs left to close.
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  OpenPairs pairs(sizes);
  std::vector<std::vector<int>> rows;
  for (;;) {
    std::vector<int> row(sizes.size(), 0);
    int64_t closed = 0;
    for (size_t taken = 0; taken < order.size(); ++taken) {
      const size_t dimension = order[taken];
      int64_t most = -1, most_left = -1;
      for (int value = 0; value < sizes[dimension]; ++value) {
        int64_t closes = 0;
        for (size_t i = 0; i < taken; ++i) {
          closes += pairs.open(dimension, value, order[i], row[order[i]]) ? 1 : 0;
        }
        const int64_t left = pairs.left(dimension, value);
        if (closes < most || (closes == most && left <= most_left)) continue;
        most = closes;
        most_left = left;
        row[dimension] = value;
      }
      closed += most;
    }
    // The first value of a row has pairs left if any has: its dimension meets all others.
    if (closed == 0) return rows;
    pairs.close(row);
    rows.push_back(std::move(row));
  }
}

}  // namespace distca
