#pragma once
// Predicts the most that the tensors of one rank take in a run, part by part, without running it:
// what MemoryMeter (runtime/memory_meter.h) measures and metrics.jsonl shows as peak_bytes.
//
//     PeakOfRank peak_of_rank(config, rank, num_workers);
//     const PeakMemory peak = peak_of_rank.add(programs.of(rank)).peak();  // or of some batches
//     fmt::print("{:.0f} bytes, in {}\n", peak.total(), peak.where);
//
// The program of a step is played on paper (forecast/memory_walk.h), on top of what stands in
// memory (standing_memory() of forecast/memory.h, which also refuses runs that cannot fit). Counts:
// tensors, on a CUDA device with those of ATen's attention in bf16. Ignores: the program, PyTorch's
// libraries, the data set's index, scratch of ATen's attention elsewhere, blocks of rows that fit a
// cache, validation, which keeps nothing for backward. Any thread may call the functions.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "distca/config/config.h"
#include "distca/forecast/memory.h"
#include "distca/forecast/plan_request.h"
#include "distca/kernels/varlen_memory.h"
#include "distca/program/program.h"

namespace distca {

/// The memory that a rank holds at the moment of its peak.
struct PeakMemory : MemoryParts {
  std::string where;        // the operation under way, as describe(Op) names it
  double most_passing = 0;  // the most of logits and phases together, at any moment
};

/// Finds the peak of a rank over steps. Exchange buffers grow to the largest that any step needs,
/// and stay.
class PeakOfRank {
 public:
  /// Borrows the configuration. `multiprocessors`: as peak_of_step() takes them.
  PeakOfRank(const Config& config, int rank, int num_workers,
             int64_t multiprocessors = kernels::FlashDevice().multiprocessors);
  /// A step with this program, which is the rank's. Returns this object.
  PeakOfRank& add(const Program& program);
  PeakMemory peak() const;

 private:
  const Config& config_;
  int rank_, num_workers_;
  int64_t multiprocessors_;
  PeakMemory highest_;  // without buffers, which stand during every operation
  std::map<std::pair<BufferRole, int64_t>, int64_t> buffers_;  // [role, how many before it] bytes
};

/// The peaks of the local ranks under the plans of one batch. `multiprocessors`: as
/// peak_of_step() takes them.
std::vector<PeakMemory> peaks_of_batch(
    const Config& config, const BatchPlans& plans, int num_workers, LocalRanks local,
    int64_t multiprocessors = kernels::FlashDevice().multiprocessors);

/// The least that ranks with these peaks need together. They keep their activations at the same
/// time, since they exchange rows in every layer, but one of them alone may have its logits and the
/// temporaries of an operation.
MemoryParts least_together(const std::vector<PeakMemory>& peaks);

}  // namespace distca
