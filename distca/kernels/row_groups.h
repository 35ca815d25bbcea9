#pragma once
// Finds out who has rows in common: groups of users of rows that are connected by overlapping
// ranges of the same buffer. There are no errors. Thread rule: no shared state.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "distca/base/integers.h"

namespace distca::kernels {

/// Disjoint sets of the numbers below `size`. At first every number is a set of its own. A set has
/// the name of its smallest member.
class Groups {
 public:
  explicit Groups(size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0); }
  /// The name of the set that i is in.
  int64_t find(int64_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  /// Makes one set of the sets of a and b.
  void join(int64_t a, int64_t b) {
    a = find(a), b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<int64_t> parent_;
};

/// Rows of a buffer that a user reads or adds to. The first of them is at `position` in its
/// document.
struct RowUse {
  int64_t buffer = 0;
  Range rows{};
  int64_t position = 0;
  int64_t user = 0;
};

/// Calls visit(std::span<const RowUse>) for each set of two or more uses that are connected by
/// overlapping rows, either directly or through other uses. Takes time n log n for n uses.
template <typename Visit>
void for_each_overlap(std::vector<RowUse> uses, const Visit& visit) {
  std::erase_if(uses, [](const RowUse& use) { return use.rows.empty(); });
  std::ranges::sort(uses, {}, [](const RowUse& use) { return std::tie(use.buffer, use.rows); });
  for (size_t first = 0; first < uses.size();) {
    int64_t end = uses[first].rows.end;
    size_t next = first + 1;
    for (; next < uses.size() && uses[next].buffer == uses[first].buffer &&
           uses[next].rows.begin < end;
         ++next) {
      end = std::max(end, uses[next].rows.end);
    }
    if (next - first > 1) visit(std::span<const RowUse>(uses).subspan(first, next - first));
    first = next;
  }
}

}  // namespace distca::kernels
