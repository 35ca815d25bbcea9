#include "tests/covering_pairs.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "distca/base/error.h"

namespace distca {
namespace {

using Row = std::vector<int>;

/// Some dimensions, and where the tuples of their values stand.
struct DimensionSet {
  uint32_t mask = 0;
  std::vector<size_t> dimensions;
  size_t first = 0;
};

/// The tuples of values that no row has yet.
class OpenTuples {
 public:
  OpenTuples(const std::vector<int>& sizes, int strength) : sizes_(sizes), of_(sizes.size()) {
    for (uint32_t mask = 0; mask < uint32_t{1} << sizes.size(); ++mask) {
      if (std::popcount(mask) != strength) continue;
      DimensionSet set{.mask = mask, .dimensions = {}, .first = is_open_.size()};
      size_t tuples = 1;
      for (size_t d = 0; d < sizes.size(); ++d) {
        if ((mask >> d & 1) == 0) continue;
        set.dimensions.push_back(d);
        of_[d].push_back(sets_.size());
        tuples *= static_cast<size_t>(sizes[d]);
      }
      is_open_.insert(is_open_.end(), tuples, 1);
      sets_.push_back(std::move(set));
    }
    left_ = is_open_.size();
  }

  size_t left() const { return left_; }

  /// The number of tuples with this dimension's value and others of `taken` that a row would close.
  int closes(const Row& row, uint32_t taken, size_t dimension) const {
    int count = 0;
    for (const size_t index : of_[dimension]) {
      const uint32_t others = sets_[index].mask & ~(uint32_t{1} << dimension);
      if ((others & ~taken) == 0) count += is_open_[place(sets_[index], row)];
    }
    return count;
  }

  void close(const Row& row) {
    for (const DimensionSet& set : sets_) {
      uint8_t& open = is_open_[place(set, row)];
      left_ -= open;
      open = 0;
    }
  }

  /// Puts the first open tuple from `at` on, in the round, into the row; returns its dimensions.
  uint32_t seed(size_t at, Row& row) const {
    auto found = std::find(is_open_.begin() + static_cast<std::ptrdiff_t>(at), is_open_.end(), 1);
    if (found == is_open_.end()) found = std::find(is_open_.begin(), is_open_.end(), 1);
    auto tuple = static_cast<size_t>(found - is_open_.begin());
    const auto set = std::ranges::upper_bound(sets_, tuple, {}, &DimensionSet::first) - 1;
    tuple -= set->first;
    for (const size_t d : set->dimensions) {
      row[d] = static_cast<int>(tuple % static_cast<size_t>(sizes_[d]));
      tuple /= static_cast<size_t>(sizes_[d]);
    }
    return set->mask;
  }
  size_t tuples() const { return is_open_.size(); }

 private:
  size_t place(const DimensionSet& set, const Row& row) const {
    size_t tuple = 0, stride = 1;
    for (const size_t d : set.dimensions) {
      tuple += static_cast<size_t>(row[d]) * stride;
      stride *= static_cast<size_t>(sizes_[d]);
    }
    return set.first + tuple;
  }

  const std::vector<int>& sizes_;
  std::vector<DimensionSet> sets_;
  std::vector<std::vector<size_t>> of_;  // [dimension] in sets_
  std::vector<uint8_t> is_open_;
  size_t left_ = 0;
};

/// Greedy: from an open tuple on, dimension by dimension from the largest, a row takes the value
/// that closes most tuples with those taken. Returns how many it closes behind the first.
int fill(const OpenTuples& open, const std::vector<int>& sizes, const std::vector<size_t>& order,
         uint32_t taken, Row& row) {
  int closed = 0;
  for (const size_t dimension : order) {
    if ((taken >> dimension & 1) != 0) continue;
    int most = -1, best = 0;
    // Rows would otherwise agree where nothing is to be closed.
    const int begin = static_cast<int>(open.left() % static_cast<size_t>(sizes[dimension]));
    for (int i = 0; i < sizes[dimension]; ++i) {
      row[dimension] = (begin + i) % sizes[dimension];
      const int closes = open.closes(row, taken, dimension);
      if (closes <= most) continue;
      most = closes;
      best = row[dimension];
    }
    row[dimension] = best;
    closed += most;
    taken |= uint32_t{1} << dimension;
  }
  return closed;
}

}  // namespace

std::vector<std::vector<int>> covering_rows(const std::vector<int>& sizes, int strength) {
  DISTCA_CHECK(strength >= 2 && sizes.size() >= static_cast<size_t>(strength) &&
                   sizes.size() <= 16 && *std::ranges::min_element(sizes) >= 1,
               "{} dimensions, of which each has a value, for sets of {}", sizes.size(), strength);
  constexpr size_t kSeeds = 24;  // rows that are tried; the best one is taken
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  OpenTuples open(sizes, strength);
  std::vector<Row> rows;
  while (open.left() > 0) {
    Row best;
    int most = -1;
    for (size_t seed = 0; seed < kSeeds; ++seed) {
      Row row(sizes.size(), 0);
      const uint32_t taken = open.seed(open.tuples() * seed / kSeeds, row);
      const int closed = fill(open, sizes, order, taken, row);
      if (closed <= most) continue;
      most = closed;
      best = std::move(row);
    }
    open.close(best);
    rows.push_back(std::move(best));
  }
  return rows;
}

std::vector<std::vector<int>> covering_pairs(const std::vector<int>& sizes) {
  return covering_rows(sizes, 2);
}

}  // namespace distca
