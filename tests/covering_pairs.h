#pragma once
// Few cases instead of a whole grid: every pair, or every triple, of values of different dimensions
// occurs in one of them. Pure functions; any thread.

#include <vector>

namespace distca {

/// Rows of indices, row[d] in [0, sizes[d]): for any `strength` dimensions and any value of each
/// there is a row with all of them. The same arguments give the same rows. `sizes`: up to 16
/// of them, at least `strength`, which is 2 or more, and each at least 1.
std::vector<std::vector<int>> covering_rows(const std::vector<int>& sizes, int strength);
/// Rows with every pair of values of any two dimensions: covering_rows of strength 2.
std::vector<std::vector<int>> covering_pairs(const std::vector<int>& sizes);

}  // namespace distca
