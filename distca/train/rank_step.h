#pragma once
// The figures of a step on one rank, which all ranks exchange. These are plain values without
// shared state.

#include <cstdint>
#include <vector>

#include "distca/report/metrics.h"
#include "distca/runtime/memory_meter.h"
#include "distca/train/checkpoint_saver.h"
#include "distca/train/plan_ahead.h"
#include "distca/train/step_guard.h"
#include "distca/train/worker_weights.h"

namespace distca {

struct RankStep {
  double loss_sum = 0, grad_norm = 0;
  StepOutcome outcome;
  SaveReport save = SaveReport::kWritten;
  int stop_signal = 0;        // that this rank was sent
  bool ends_in_time = false;  // by its ExitTime this step must be the last; rank 0's counts
  ExchangeBytes bytes;
  int64_t bytes_tensor = 0, bytes_between_nodes = 0;
  double attention_s = 0;
  MemoryUse memory;
  RankSample sample;
};

/// Makes the figures that a rank knows by itself: sums, bytes, times and memory. `weights` is null
/// on a dedicated server.
RankStep rank_step(const Config& config, const StepResult& result, const PlannedBatch& planned,
                   const MemoryMeter& memory, const WorkerWeights* weights);

/// Adds the ranks' figures, in rank order, to those of the step. Returns the sum of their losses.
double add_ranks(const std::vector<RankStep>& ranks, StepMetrics* metrics);

}  // namespace distca
