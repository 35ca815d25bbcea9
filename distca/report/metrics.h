#pragma once
// The figures of a step, and its line of metrics.jsonl, for programs to read (progress.h is for
// people). Any thread may call these functions.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "distca/base/json.h"
#include "distca/config/config.h"
#include "distca/config/resolved_config.h"
#include "distca/cost/speed_meter.h"
#include "distca/cost/speeds.h"
#include "distca/forecast/plan_figures.h"
#include "distca/report/position_losses.h"
#include "distca/runtime/executor.h"
#include "distca/runtime/step_attention.h"

namespace distca {

/// How the checkpoints of this start of a run are going.
struct CheckpointFigures {
  double held_up_s = 0;    // seconds for which saves held training up, since the last step's line
  int64_t copy_bytes = 0;  // size of this rank's copy, from which it writes; 0 if none
  int64_t last_complete = 0;  // the step of the last complete one; 0 if none
  int64_t num_failed = 0;     // saves that failed
};

/// Memory of a rank (runtime/memory_meter.h), at most: since the run began.
struct MemoryUse {
  int64_t now_bytes = 0;          // bytes that tensors take after the step
  int64_t peak_bytes = 0;         // the most that tensors took at a time
  int64_t resident_bytes = 0;     // the most that the rank's process had in RAM
  int64_t weight_copy_bytes = 0;  // copies of its weights in the compute type
  int64_t optimizer_bytes = 0;    // AdamW's moments and, with ZeRO-1, main params
};

/// One optimizer step over all ranks. Times are those of rank 0 unless stated otherwise.
struct StepMetrics {
  int64_t step = 0;            // from 1
  std::optional<double> loss;  // nats per target; none if the batch has no target
  double grad_norm = 0;        // before clipping
  double lr = 0;
  double step_s = 0;            // length of the step in seconds
  double model_flops = 0;       // floating-point operations of the step (LlamaConfig::train_flops)
  double peak_flops_per_s = 0;  // all ranks' peak, measured at the start (compute_peak.h)
  ExchangeBytes bytes;          // bytes of all ranks, forward and backward
  int64_t bytes_tensor = 0;     // the part of bytes.sent that ranks of one server send each other
  int64_t bytes_between_nodes = 0;  // the part of bytes.sent that goes to another node
  /// [ranks] seconds in core attention, forward and backward of all layers and nano-batches. On a
  /// CPU with one thread a rank, it is processor time, as in profiles. With more threads, it is
  /// elapsed time, which includes waits for a core. On CUDA, it is the device's time.
  std::vector<double> attention_s;
  std::vector<RankSample> ranks;  // [ranks] work before gradients are summed, and its times
  OpTimes times;                  // by operation and pass
  std::vector<MemoryUse> memory;  // [ranks]
  /// Measured speeds. In step 1, they are those that its plan rests on. In later steps, they are
  /// new ones, which hold from step + 2 on. If there are none, from_step is 0.
  Speeds speeds;
  std::optional<double> validation_loss;             // nats per target; none if it was not measured
  std::vector<PositionBand> validation_by_position;  // validation loss by position in the document
  bool skipped = false;  // the step did not reach the weights (train.bad_step)
  CheckpointFigures checkpoint;
  /// Seconds that train.exit_duration_in_mins leaves the run after the step, infinite without it.
  double limit_left_s = std::numeric_limits<double>::infinity();
  bool ends_in_time = false;  // the run ends after this step because no other one fits
  PlanFigures plan;
};

/// A line of metrics.jsonl. Every line repeats what the run's plans count load in, which kernel
/// computes, train.overlap and train.steps. Its time is that of the call.
Json metrics_line(const StepMetrics& metrics, const Config& config, const ResolvedConfig& resolved);

/// The speeds as a field of a line: the ones that plans of later steps are made with.
Json speeds_json(const Speeds& speeds);

}  // namespace distca
