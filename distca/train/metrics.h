#pragma once
// What a step was, for machines: metrics.jsonl. For people: progress.h. Rank 0 only; one thread.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "distca/cost/speeds.h"
#include "distca/runtime/core_attention.h"
#include "distca/runtime/executor.h"
#include "distca/train/metrics_file.h"

namespace distca {

/// One optimizer step over all ranks; times are rank 0's.
struct StepMetrics {
  int64_t step = 0;  // from 1
  double loss = 0;   // nats per target
  double grad_norm = 0;
  double lr = 0;
  int64_t tokens = 0;
  double step_s = 0;
  double model_flops = 0;       // of the step
  double peak_flops_per_s = 0;  // of all ranks together, measured when the run began (peak.h)
  double imbalance_before = 1;  // max/mean attention load of workers under plain packing, by pairs
  double imbalance_after = 1;   // of servers under the plan, of load over capacity
  ExchangeBytes bytes;          // all ranks, forward and backward
  int64_t num_resent = 0;       // nano-batches of which Q, K, V traveled again for backward
  double plan_s = 0;       // making and checking the plans and this rank's program and reading its
                           // tokens, on a thread of its own
  double validate_s = 0;   // of it, checking programs: before step 1 those of all ranks together
  double plan_wait_s = 0;  // how long the step waited for it
  // Time in attention, forward and backward of all layers and nano-batches. Measured: on a CPU with
  // one thread a rank its processor time, as profiles are; with more threads the time that passed,
  // waits for a core included; on CUDA the device's.
  std::vector<double> attention_s;            // [ranks] measured
  std::vector<double> attention_predicted_s;  // [ranks] by plan.profile; empty without one
  OpTimes times;
  std::vector<std::string> chosen;  // what plan.tolerance = auto chose, a nano-batch
  Speeds speeds;  // what was measured: in step 1 what its plan rests on, later what holds from
                  // step + 2 on, if that is new; else of from_step 0
  int64_t speeds_from_step = 0;           // of the speeds that this step was planned with; 0: none
  std::optional<double> validation_loss;  // nats per target
};

/// Said in every line.
struct RunLabels {
  std::string price;     // what the run plans by (PlanOptions::price)
  std::string kernel;    // what computes core attention (AttentionKernel::name)
  std::string schedule;  // train.schedule
};

class Metrics {
 public:
  /// Opens metrics.jsonl, at `file`. Throws Error(kIo).
  Metrics(const std::filesystem::path& file, RunLabels labels);

  /// Appends one line.
  void record(const StepMetrics& metrics);
  /// How many lines metrics.jsonl lacks, after the last one.
  int64_t finish() { return file_.finish(); }

 private:
  MetricsFile file_;
  RunLabels labels_;
};

}  // namespace distca
