#pragma once
// Predicts the most that the tensors of one rank take in a run, part by part, without running it:
// what MemoryMeter (runtime/memory_meter.h) measures and metrics.jsonl shows as peak_bytes.
//
//     PeakOfRank peak_of_rank(config, rank, num_workers);
//     peak_of_rank.add(programs.of(rank));  // of some batches
//     const PeakMemory peak = peak_of_rank.peak();
//     fmt::print("{:.0f} bytes, in {}\n", peak.total(), peak.where);
//
// The program of a step is played on paper (forecast/memory_walk.h), on top of what stands in
// memory (standing_memory() of forecast/memory.h, which also refuses runs that cannot fit). Counts:
// tensors, on a CUDA device with those of ATen's attention in bf16. Ignores: the program, PyTorch's
// libraries, the data set's index, scratch of ATen's attention elsewhere, blocks of rows that fit a
// cache, validation, which keeps nothing for backward. Any thread may call the functions.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "distca/config/config.h"
#include "distca/kernels/varlen_memory.h"
#include "distca/program/program.h"

namespace distca {

/// Uses of a rank's memory. The first six stand during a step, the others come and go.
enum class MemoryPart : uint8_t {
  kWeights,
  kGradients,
  kState,        // AdamW's two moments; with ZeRO-1 also masters
  kCopies,       // copies of the weights in the compute type
  kCheckpoint,   // the copy from which checkpoints are written
  kBuffers,      // buffers of exchanges and gradient sums, with keys kept until backward
  kActivations,  // tensors that forward keeps for backward, and gradients by activations
  kLogits,       // logits of one chunk of rows, with what the loss makes of them
  kPhase,        // temporaries of the operation under way
};
inline constexpr int kNumMemoryParts = static_cast<int>(MemoryPart::kPhase) + 1;
/// "weights", "gradients", ...
const char* memory_part_name(MemoryPart part);

struct PeakMemory {
  std::array<double, kNumMemoryParts> bytes{};  // [MemoryPart] at the moment of the peak
  std::string where;                            // the operation under way, as describe(Op) names it
  double most_passing = 0;  // the most of logits and phases together, at any moment
  double of(MemoryPart part) const { return bytes[static_cast<size_t>(part)]; }
  double total() const;
};

/// Finds the peak of a rank over steps. Exchange buffers grow to the largest that any step needs,
/// and stay.
class PeakOfRank {
 public:
  /// Borrows the configuration. `multiprocessors`: as peak_of_step() takes them.
  PeakOfRank(const Config& config, int rank, int num_workers,
             int64_t multiprocessors = kernels::FlashDevice().multiprocessors);
  /// A step with this program, which is the rank's.
  void add(const Program& program);
  PeakMemory peak() const;

 private:
  const Config& config_;
  int rank_, num_workers_;
  int64_t multiprocessors_;
  PeakMemory highest_;  // without buffers, which stand during every operation
  std::map<std::pair<BufferRole, int64_t>, int64_t> buffers_;  // [role, how many before it] bytes
};

}  // namespace distca
