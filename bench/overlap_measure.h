#pragma once
// Measures the settings of bench/overlap, on each of two ranks alike (overlap_figures.h says what).
// Thread rule: one thread a rank, pinned, all ranks in the same order.

#include <memory>

#include "bench/overlap_figures.h"
#include "distca/comm/communicator.h"
#include "distca/model/llama.h"

namespace distca::bench {

constexpr int kNanoBatches = 2;  // of a step

struct OverlapOptions {
  LlamaConfig model;
  int rounds = kLeastRounds;
  int shown_rounds = 5;  // of settings and arms that are not judged
};
/// The model that is measured: 8 layers whose core attention and linear work take about as long.
LlamaConfig overlap_model();

class OverlapMeasurer {
 public:
  OverlapMeasurer(const OverlapOptions& options, Communicator& comm);
  ~OverlapMeasurer();

  /// Limits the wire of this rank's namespace, chooses how much is swapped and measures. Rank 0's
  /// figures are the setting's; `step_s` is the same on all.
  OverlapFigures measure(const OverlapSetting& setting);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca::bench
