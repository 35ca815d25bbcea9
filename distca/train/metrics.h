#pragma once
// Writes metrics.jsonl: what each step was, for programs to read (progress.h is for people). Only
// rank 0 uses it, from one thread.

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

/// One optimizer step over all ranks. Times are those of rank 0 unless stated otherwise.
struct StepMetrics {
  int64_t step = 0;      // from 1
  double loss = 0;       // nats per target
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double step_s = 0;            // length of the step in seconds
  double model_flops = 0;       // floating-point operations of the step (LlamaConfig::train_flops)
  double peak_flops_per_s = 0;  // of all ranks together, measured at the start (compute_peak.h)
  ExchangeBytes bytes;          // of all ranks, forward and backward
  /// [ranks] seconds in core attention, forward and backward of all layers and nano-batches. On a
  /// CPU with one thread a rank, it is processor time, as in profiles. With more threads, it is
  /// elapsed time, which includes waits for a core. On CUDA, it is the device's time.
  std::vector<double> attention_s;
  OpTimes times;  // by operation and pass
  /// What was measured: in step 1 the speeds that its plan rests on, later the new speeds that hold
  /// from step + 2 on. If there are no new ones, from_step is 0.
  Speeds speeds;
  std::optional<double> validation_loss;  // nats per target; none if it was not measured
  PlanFigures plan;
};

/// What every line of metrics.jsonl repeats.
struct RunLabels {
  std::string price;    // what the run plans by (PlanOptions::price)
  std::string kernel;   // what computes core attention (AttentionKernel::name)
  std::string overlap;  // train.overlap
};

/// The speeds as a field of a line: the ones that plans of later steps are made with.
Json speeds_json(const Speeds& speeds);

/// The open metrics.jsonl of a run.
class Metrics {
 public:
  /// Opens `file` and empties it. Throws Error(kIo).
  Metrics(const std::filesystem::path& file, RunLabels labels);

  /// Appends the line of a step.
  void record(const StepMetrics& metrics);
  /// Ends the file after the last line. Returns how many lines could not be written.
  int64_t finish() { return file_.finish(); }

 private:
  MetricsFile file_;
  RunLabels labels_;
};

}  // namespace distca
