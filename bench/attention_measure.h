#pragma once
// Measures the rows of bench/attention. One at a time: times are of the machine.

#include <optional>
#include <string>
#include <vector>

#include "bench/attention_bars.h"
#include "bench/attention_rows.h"

namespace distca::bench {

struct MeasureOptions {
  int rounds = kLeastRounds;
  bool quick = false;
  std::vector<int> cores;  // the first measures alone, all together measure threads
  TorchMachine machine;
};

/// One instruction set on one causal sequence.
struct LengthResult {
  RowSpec row;
  Pass pass = Pass::kForward;
  kernels::Isa isa = kernels::Isa::kPortable;
  double best = 0;        // GFLOP/s, of twice as many turns as rounds
  double torch_best = 0;  // likewise; 0: built without PyTorch
  Figure of_peak;
  Figure of_torch;
  std::string name() const;
};

/// One size of shards.
struct ShardResult {
  RowSpec row;
  Pass pass = Pass::kForward;
  int64_t queries = 0;
  int64_t shards = 0;
  double best = 0;
  double long_best = 0;
  Figure of_long;
  std::string name() const;
};

struct ThreadsResult {
  RowSpec row;
  Pass pass = Pass::kForward;
  double best_of_one = 0;
  double best = 0;
  Estimate gain;       // rate on all cores over rate on one
  Estimate loop_gain;  // of the multiply-add loop
  Figure of_loop;      // gain over loop_gain
  std::string name() const;
};

/// A multiply-add loop.
struct PeakResult {
  kernels::Isa isa = kernels::Isa::kPortable;
  ScalarType type = ScalarType::kFloat32;
  double best = 0;
  double best_of_all_cores = 0;
};

struct Results {
  // Of the rows on one thread: less processor time than wall-clock time means that other programs
  // had turns on the core, which shares and ratios bear better than rates on several threads.
  double processor_seconds = 0;
  double wall_seconds = 0;
  // Of the rows of one sequence, the least: share of the memory in huge pages.
  double kernel_huge_pages = 1;
  double torch_huge_pages = 1;
  std::vector<PeakResult> peaks;
  std::vector<LengthResult> lengths;
  std::vector<ShardResult> shards;
  std::vector<ThreadsResult> threads;
};

/// The calling thread must be pinned to the first core.
class Measurer {
 public:
  explicit Measurer(const MeasureOptions& options);
  void peaks(Results& results);
  /// An O that is not PyTorch's is a CHECK: times would mean nothing.
  void row(const RowSpec& row, Results& results);

 private:
  void length(const RowSpec& row, Results& results);
  void shards(const RowSpec& row, Results& results);
  void threads(const RowSpec& row, Results& results);

  MeasureOptions options_;
  kernels::ThreadPool one_;
  std::optional<kernels::ThreadPool> all_;  // where there are several cores
};

}  // namespace distca::bench
