#pragma once
// Few cases instead of a whole grid: every pair of values of any two dimensions occurs in one of
// them. Pure function; any thread.

#include <vector>

namespace distca {

/// Rows of indices, row[d] in [0, sizes[d]): for any two dimensions and any value of each there is
/// a row with both. The same sizes give the same rows. `sizes`: two or more, each at least 1.
std::vector<std::vector<int>> covering_pairs(const std::vector<int>& sizes);

}  // namespace distca
