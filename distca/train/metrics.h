#pragma once
// What a step was, for machines: metrics.jsonl. For people: progress.h. Rank 0 only; one thread.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "distca/base/json.h"
#include "distca/cost/speeds.h"
#include "distca/runtime/core_attention.h"
#include "distca/runtime/executor.h"
#include "distca/train/metrics_file.h"
#include "distca/train/plan_figures.h"

namespace distca {

/// One optimizer step over all ranks; times are rank 0's.
struct StepMetrics {
  int64_t step = 0;  // from 1
  double loss = 0;   // nats per target
  double grad_norm = 0;
  double lr = 0;
  double step_s = 0;
  double model_flops = 0;       // of the step
  double peak_flops_per_s = 0;  // of all ranks together, measured at the start (compute_peak.h)
  ExchangeBytes bytes;          // all ranks, forward and backward
  // [ranks] time in attention, forward and backward of all layers and nano-batches: on a CPU with
  // one thread a rank its processor time, as profiles are; with more threads the time that passed,
  // waits for a core included; on CUDA the device's.
  std::vector<double> attention_s;
  OpTimes times;
  Speeds speeds;  // what was measured: in step 1 what its plan rests on, later what holds from
                  // step + 2 on, if that is new; else of from_step 0
  std::optional<double> validation_loss;  // nats per target
  PlanFigures plan;
};

/// Said in every line.
struct RunLabels {
  std::string price;    // what the run plans by (PlanOptions::price)
  std::string kernel;   // what computes core attention (AttentionKernel::name)
  std::string overlap;  // train.overlap
};

/// What plans of later steps are made with.
Json speeds_json(const Speeds& speeds);

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
