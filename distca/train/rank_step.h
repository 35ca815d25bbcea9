#pragma once
// The figures of a step on one rank, which all ranks exchange. These are plain values without
// shared state.

#include <cstdint>
#include <vector>

#include "distca/report/metrics.h"
#include "distca/train/checkpoint_saver.h"
#include "distca/train/step_guard.h"

namespace distca {

struct RankStep {
  double loss_sum = 0, grad_norm = 0;
  StepVerdict verdict;
  SaveReport save;
  int stop_signal = 0;  // that this rank was sent
  ExchangeBytes bytes;
  int64_t bytes_between_nodes = 0;
  double attention_s = 0;
  MemoryUse memory;
  RankSample sample;
};

/// Adds the ranks' figures, in rank order, to those of the step. Returns the sum of their losses.
double add_ranks(const std::vector<RankStep>& ranks, StepMetrics* metrics);

}  // namespace distca
