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

/// Cache lines of so many bytes.
constexpr int lines_of(size_t bytes) { return static_cast<int>((bytes + 63) / 64); }

/// Asks for memory a few cache lines at a time, during the arithmetic. Asking for more at once
/// would fill the processor's list of open misses and hold up the loads of the products.
class Fetch {
 public:
  /// Forgets all rows.
  void start() { lists_ = list_ = row_ = line_ = lines_ = 0; }
  /// Adds `bytes` bytes of each row that is not nullptr. `rows` is read when it is a row's turn.
  void add(const void* const* rows, int count, size_t bytes) {
    of_[lists_++] = {rows, count, lines_of(bytes)};
    lines_ += count * lines_of(bytes);
  }
  /// Spreads all cache lines over `steps` calls of step().
  void spread(int steps) { step_ = (lines_ + steps - 1) / steps; }
  /// Asks for the next cache lines.
  void step() {
    for (int i = 0; i < step_ && list_ < lists_; ++i) {
      const List& list = of_[list_];
      if (list.rows[row_] != nullptr) {
        const auto* row = static_cast<const std::byte*>(list.rows[row_]);
        __builtin_prefetch(row + int64_t{64} * line_, 0, 2);
      }
      if (++line_ < list.lines) continue;
      line_ = 0;
      if (++row_ == list.count) row_ = 0, ++list_;
    }
  }

 private:
  struct List {
    const void* const* rows;
    int count;
    int lines;  // cache lines of a row
  };
  List of_[2 * kTileRows / kPanelRows + 4];  // Q and dO of each panel, and K, V, dK, dV
  int lists_ = 0, list_ = 0, row_ = 0, line_ = 0, lines_ = 0, step_ = 0;
};

}  // namespace
}  // namespace distca::kernels
