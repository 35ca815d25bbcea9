#pragma once
// Statistics of a set of measurements. Any thread may call this.

#include <algorithm>
#include <vector>

namespace distca {

/// The median. Of an even number of values, it is the mean of the two in the middle; of none, 0.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace distca
