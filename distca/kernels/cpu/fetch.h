#pragma once
// Asks for memory before it is needed (prefetches it). The rows of tokens lie so far apart that the
// processor does not foresee which are read next. Only for sources that are compiled for one
// instruction set.

#include <cstddef>
#include <cstdint>

#include "distca/kernels/cpu/engine.h"

namespace distca::kernels {
namespace {

/// Asks at once for `bytes` bytes of each row. Addresses need not be valid.
void fetch_rows(const void* const* rows, int count, size_t bytes) {
  for (int i = 0; i < count; ++i) {
    for (size_t j = 0; j < bytes; j += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(rows[i]) + j));
    }
  }
}

/// Asks for memory a few cache lines at a time, during the arithmetic. Asking for more at once
/// would hold up the loads of the products.
class Fetch {
 public:
  /// Forgets all rows.
  void start() { rows_ = row_ = line_ = lines_ = 0; }
  /// Adds `bytes` bytes of each row that is not nullptr.
  void add(const void* const* rows, int count, size_t bytes) {
    const int lines = static_cast<int>((bytes + 63) / 64);
    for (int i = 0; i < count; ++i) {
      if (rows[i] == nullptr) continue;
      row_at_[rows_] = static_cast<const std::byte*>(rows[i]);
      row_lines_[rows_++] = lines;
      lines_ += lines;
    }
  }
  /// Spreads all cache lines over `steps` calls of step().
  void spread(int steps) { step_ = (lines_ + steps - 1) / steps; }
  /// Asks for the next cache lines.
  void step() {
    for (int i = 0; i < step_ && row_ < rows_; ++i) {
      __builtin_prefetch(row_at_[row_] + int64_t{64} * line_, 0, 2);
      if (++line_ == row_lines_[row_]) line_ = 0, ++row_;
    }
  }

 private:
  static constexpr int kMostRows = 2 * kTileKeys + 3 * kTileRows;
  const std::byte* row_at_[kMostRows];
  int row_lines_[kMostRows];
  int rows_ = 0, row_ = 0, line_ = 0, lines_ = 0, step_ = 0;
};

/// A step of product.h that asks for the next cache lines.
struct FetchStep {
  Fetch* fetch;
  void operator()() const { fetch->step(); }
};

}  // namespace
}  // namespace distca::kernels
