#pragma once
// Measures the rows of bench/attention and writes what it measured as lines (bench/lines.h): rates
// in GFLOP/s, round by round. One row at a time: times are of the machine.

#include <optional>
#include <vector>

#include "bench/attention_rows.h"

namespace distca::bench {

struct MeasureOptions {
  int rounds = 0;
  std::vector<int> cores;  // the first measures alone, all together measure threads
};

/// The calling thread must be pinned to the first core.
class Measurer {
 public:
  explicit Measurer(const MeasureOptions& options);
  /// A line an instruction set.
  void peaks();
  /// A line a pass, and one of the core that the row had. An O that is not PyTorch's is a CHECK:
  /// times would mean nothing.
  void row(const RowSpec& row);

 private:
  void length(const RowSpec& row);
  void shards(const RowSpec& row);
  void threads(const RowSpec& row);

  MeasureOptions options_;
  kernels::ThreadPool one_;
  std::optional<kernels::ThreadPool> all_;  // where there are several cores
};

}  // namespace distca::bench
