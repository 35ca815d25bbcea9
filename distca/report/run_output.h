#pragma once
// The output of a run, which rank 0 writes and shows: the folder, the lines of metrics.jsonl, the
// progress, and the weights at the end.
//
//     RunOutput output(config, state, files_beside_weights(data), /*goes_on_after=*/0, 1);
//     output.begin(text);
//     output.report(metrics, resolved);        // after every step
//     output.save_weights(model, steps);       // at the end
//
// Thread rule: one thread, of rank 0 alone.

#include <cstdint>
#include <optional>
#include <string>

#include "distca/batch/tokenizer_files.h"
#include "distca/config/config.h"
#include "distca/model/weights_file.h"
#include "distca/report/metrics.h"
#include "distca/report/metrics_file.h"
#include "distca/report/progress.h"
#include "distca/report/run_folder.h"
#include "distca/report/run_state.h"

namespace distca {

class RunOutput {
 public:
  /// Takes the folder and reserves space for the weights: who may not write there, or has no room,
  /// ends here. `goes_on_after` is the step of this folder's checkpoint that the run goes on from,
  /// and `first_step` the first one that it trains. `beside` are the files that go next to the
  /// weights, their contents by name.
  RunOutput(const Config& config, RunState& state, FilesByName beside, int64_t goes_on_after,
            int64_t first_step);

  /// Writes the first files, and the text for people.
  void begin(const std::string& text);
  /// After every step: its line for machines and, now and then, one for people.
  void report(const StepMetrics& metrics, const ResolvedConfig& resolved);
  /// Replaces the weights that the folder holds by those after so many steps, with the files that
  /// go next to them. Of those, one that is there with other contents stays, and a warning says so,
  /// unless train.overwrite is set or the weights of another run are replaced, whose tokenizer
  /// goes. Throws Error(kIo), once the weights are saved if the others cannot be.
  void save_weights(const std::vector<at::Tensor>& weights, int64_t steps);
  /// Brings metrics.jsonl to disk. Returns how many of its lines could not be written.
  int64_t finish_metrics() { return metrics_->finish(); }

 private:
  void save_beside();
  void warn(const StepMetrics& metrics);

  const Config& config_;
  RunState& state_;
  const FilesByName beside_;
  RunFolder folder_;
  std::optional<MetricsFile> metrics_;  // from begin() on, as progress_
  std::optional<Progress> progress_;
  int64_t first_step_;
  TimeLeft time_left_;
  bool said_redispatched_ = false, said_bad_tokens_ = false;
};

}  // namespace distca
