#pragma once
// The first and the exit message of a run: what it is about to do, and what it has shown. Only rank
// 0 uses it, from one thread.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "distca/batch/corpus_statistics.h"
#include "distca/batch/data_blend.h"
#include "distca/config/config.h"
#include "distca/config/run_grid.h"
#include "distca/report/metrics.h"

namespace distca {

/// The peak that train/compute_peak.h measures before the first step.
struct ComputePeak {
  /// FLOP/s of all ranks together, measured while all of them work at the same time. Ranks that
  /// share cores do not count twice.
  double flops_per_s = 0;
  std::string of;  // the measured operations, such as "bfloat16 matrix products"
  /// The time of attention's backward with deterministic operators over that without
  /// (runtime/cuda/deterministic_price.h). Only rank 0 measures it. 0 means that it is not
  /// measured.
  double deterministic_times = 0;
};

/// Sums over the steps of a run. add() keeps them; the trainer sets `num_workers`,
/// `ranks_of_server`, `goes_on_after`, `last`, `last_step`, `metrics_missing` and `trace`. A step
/// without targets has no loss.
struct RunSummary {
  int num_workers = 0;  // servers from this number on are dedicated ones
  int ranks_of_server = 1;
  int64_t steps = 0;
  /// The step of the checkpoint that this start went on from. 0 means that it began a new run.
  int64_t goes_on_after = 0;
  std::optional<double> first_loss, last_loss;
  StepMetrics last;
  /// Sums over all steps: of tokens, step_s, attention_s, loads, imbalances, predictions and the
  /// planner's times. Its other fields are not set. attention_s is that of servers. Imbalances are
  /// shown divided by `steps`.
  StepMetrics sum{.plan = {.imbalance_before = 0, .imbalance_after = 0}};
  std::vector<double> waited_s;  // [ranks] summed over steps
  int64_t last_step = 0;         // the last step of this start: train.steps unless it ended early
  std::string trace;             // a line on train.trace, or ""
  int64_t metrics_missing = 0;   // lines that metrics.jsonl lacks because its disk is full
  /// [steps] |predicted / measured - 1|, each the median over the servers.
  std::vector<double> prediction_errors;

  /// Adds a step.
  void add(const StepMetrics& step);
};

/// Lines of the summary: each server's measured time in core attention and, with a profile, the
/// predicted one.
std::string attention_times(const Config& config, const RunSummary& summary);

/// Lines of the summary: what the ranks waited and, where it was estimated, how long plain packing
/// would have taken. Empty where there is one rank, which waits for nobody.
std::string balance_text(const RunSummary& summary);

/// A line of the summary: which loss counting tokens would reach, and on which text.
std::string describe_counting(const Entropies& entropies);

/// Says which steps metrics.jsonl holds, if `missing` of its lines could not be written.
std::string steps_written(int64_t steps, int64_t missing);

/// The first lines that concern devices: the price of deterministic attention if it was measured,
/// and the cap that plans take from the devices' memory if there is one.
std::vector<std::string> device_lines(const Config& config, const ComputePeak& peak);

/// The first words of a run: what is trained, on which grid, with which data and kernel. `data` is
/// what describe_split says. Lines have at most 100 columns, unless a word is longer.
std::string start_text(const Config& config, const std::string& data, const RunGrid& run,
                       const std::string& kernel, const ComputePeak& peak);

/// The exit message of a run: what was learned, the load of every server before and after
/// balancing, and what was saved.
std::string summary_text(const Config& config, const DataBlend& data, const RunSummary& summary);

}  // namespace distca
