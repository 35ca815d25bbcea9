#pragma once
// The first and the last words of a run: what it is about to do, and what it has shown. Only rank 0
// uses it, from one thread.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/batch/corpus_statistics.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/train/compute_peak.h"
#include "distca/train/config.h"
#include "distca/train/metrics.h"

namespace distca {

/// Sums over the steps of a run. add() keeps them; the trainer sets `num_workers`, `last` and
/// `metrics_missing`.
struct RunSummary {
  int num_workers = 0;               // ranks from this number on are dedicated servers
  std::vector<int64_t> load_before;  // [servers] pairs over all steps, under plain packing
  std::vector<int64_t> load_after;   // [servers] the same under the plans
  double seconds = 0;                // in training steps
  int64_t tokens = 0;                // trained on
  double first_loss = 0;             // of step 1
  StepMetrics last;                  // of the last step
  /// Sums over the steps of PlanFigures::imbalance_before and imbalance_after, which are the
  /// factors by which attention waits for the busiest server. They are shown divided by `steps`.
  double imbalance_before = 0;
  double imbalance_after = 0;
  int64_t steps = 0;
  int64_t metrics_missing = 0;      // lines that metrics.jsonl lacks because its disk is full
  double plan_s = 0;                // planning, beside the steps
  double plan_wait_s = 0;           // in which steps waited for their plans
  std::vector<double> attention_s;  // [servers] measured, over all steps
  std::vector<double> attention_predicted_s;  // [servers] empty without plan.profile
  /// [steps] |predicted / measured - 1|, each the median over the servers.
  std::vector<double> prediction_errors;

  /// Adds a step.
  void add(const StepMetrics& step);
};

/// What kind of time StepMetrics::attention_s is.
enum class AttentionClock {
  kProcessor,  // processor time of the rank's only thread
  kElapsed,    // elapsed time, because a rank has several threads; includes waits for a core
  kDevice,     // time on the CUDA device
};
/// The kind of time in runs with this configuration.
AttentionClock attention_clock(const Config& config);

/// Lines of the summary: each server's measured time in core attention and, with a profile, the
/// predicted one.
std::string attention_times(const Config& config, const RunSummary& summary);

/// A line of the summary: which loss counting tokens would reach, and on which text.
std::string counting_words(const Entropies& entropies);

/// Which steps metrics.jsonl holds, if `missing` of its lines could not be written.
std::string steps_written(int64_t steps, int64_t missing);

/// What is about to be run, and on what. `data` is what split_words says. Lines have at most 100
/// columns, unless a word is longer.
std::string start_text(const Config& config, const std::string& data, int num_workers,
                       const std::string& kernel, const ComputePeak& peak);

/// What was learned, the load of every server before and after balancing, and what was saved.
std::string summary_text(const Config& config, const IndexedDataset& data,
                         const RunSummary& summary);

}  // namespace distca
