#pragma once
// Measures the settings of bench/overlap, on each of two ranks alike; rank 0 writes the lines.
// Thread rule: one thread a rank, pinned, all ranks in the same order.

#include <memory>

#include "bench/overlap_settings.h"
#include "distca/comm/communicator.h"
#include "distca/model/llama.h"

namespace distca::bench {

constexpr int kNanoBatches = 2;  // of a step

struct OverlapOptions {
  LlamaConfig model;
  int rounds = 15;
  int shown_rounds = 5;  // of settings and arms that are not judged
};
/// The model that is measured: 8 layers whose core attention and linear work take about as long.
LlamaConfig overlap_model();

class OverlapMeasurer {
 public:
  OverlapMeasurer(const OverlapOptions& options, Communicator& comm);
  ~OverlapMeasurer();

  /// Limits the wire of this rank's namespace, chooses how much is swapped and measures. Lines: the
  /// setting, one a round, then what each kind of exchange takes beside what it runs under.
  void measure(const OverlapSetting& setting);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace distca::bench
