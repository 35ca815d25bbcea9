#pragma once
// What a run is about to do and what it has shown: its first and last words. Rank 0 only; one
// thread.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/batch/corpus_statistics.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/train/compute_peak.h"
#include "distca/train/config.h"
#include "distca/train/metrics.h"

namespace distca {

struct RunSummary {
  int num_workers = 0;               // servers from here on are dedicated
  std::vector<int64_t> load_before;  // [servers] pairs over all steps, plain packing
  std::vector<int64_t> load_after;   // the same under the plans
  double seconds = 0;                // in training steps
  int64_t tokens = 0;
  double first_loss = 0;
  StepMetrics last;
  // Over all steps: sum of each step's busiest server over sum of its mean, the factor by which
  // attention waits.
  double imbalance_before = 0;
  double imbalance_after = 0;
  int64_t steps = 0;
  int64_t metrics_missing = 0;                // lines that metrics.jsonl lacks: its disk is full
  double plan_s = 0;                          // of batches, beside the steps
  double plan_wait_s = 0;                     // of steps, for it
  std::vector<double> attention_s;            // [servers] measured, over all steps
  std::vector<double> attention_predicted_s;  // empty without plan.profile
  /// |predicted / measured - 1|: the median over servers, of each step.
  std::vector<double> prediction_errors;

  void add(const StepMetrics& step);
};

/// What StepMetrics::attention_s is.
enum class AttentionClock {
  kProcessor,  // of the rank's one thread
  kElapsed,    // several threads: waits for a core included
  kDevice,     // CUDA: the device's
};
AttentionClock attention_clock(const Config& config);

/// Lines of the summary: measured time by server and, with a profile, predicted.
std::string attention_times(const Config& config, const RunSummary& summary);

/// What counting would reach, and on which text: a line of the summary.
std::string counting_words(const Entropies& entropies);

/// What metrics.jsonl holds when `missing` of its lines could not be written.
std::string steps_written(int64_t steps, int64_t missing);

/// What is about to be run, on what, `data` as split_words says it: lines of at most 100 columns,
/// but for words that are longer.
std::string start_text(const Config& config, const std::string& data, int num_workers,
                       const std::string& kernel, const ComputePeak& peak);

/// What was learned, the load per server before and after balancing, what was saved.
std::string summary_text(const Config& config, const IndexedDataset& data,
                         const RunSummary& summary);

}  // namespace distca
