#pragma once
// Figures of a set of measurements. Any thread.

#include <algorithm>
#include <vector>

namespace distca {

/// The mean of the middle two of an even number; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace distca
