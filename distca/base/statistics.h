#pragma once
// Statistics of a set of measurements. Any thread may call this.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace distca {

/// The median. Of an even number of values, it is the mean of the two in the middle; of none, 0.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The mean of the values at these places; of none, 0.
inline double mean_at(const std::vector<double>& values, const std::vector<size_t>& places) {
  double sum = 0;
  for (const size_t place : places) sum += values[place];
  return places.empty() ? 0 : sum / static_cast<double>(places.size());
}

/// The places of the values in the middle, without the least and the largest quarter, in no order.
inline std::vector<size_t> middle_half(const std::vector<double>& values) {
  std::vector<size_t> places(values.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::ranges::stable_sort(places, {}, [&](size_t place) { return values[place]; });
  const auto quarter = static_cast<std::ptrdiff_t>(places.size() / 4);
  return {places.begin() + quarter, places.end() - quarter};
}

}  // namespace distca
