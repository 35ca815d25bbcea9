#pragma once
// Integer arithmetic, and the half-open range that stands for tokens, rows and keys everywhere. The
// functions are right for a >= 0 and a positive divisor. Any thread may call them.

#include <algorithm>
#include <compare>
#include <cstdint>

namespace distca {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }
constexpr int64_t round_down(int64_t a, int64_t multiple) { return a / multiple * multiple; }

/// The numbers begin, begin + 1, ..., end - 1. The unit is stated where a range is used.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
  constexpr bool contains(const Range& other) const {
    return begin <= other.begin && other.end <= end;
  }
  auto operator<=>(const Range&) const = default;
};

/// The numbers that are in both ranges. The result is empty() if there are none.
constexpr Range intersect(const Range& a, const Range& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

}  // namespace distca
