#pragma once
// Writes to stdout how far a run is: a line about each step. On a terminal, a step's line is
// overwritten by the next one. Elsewhere, one comes every few seconds. A validation loss has a line
// of its own, which stays. Training never waits for a reader (base/console.h). What is shown of a
// step is read from its line of metrics.jsonl, so that `distca monitor` shows what the training
// itself did. One thread uses an object; it needs no PyTorch.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/console.h"
#include "distca/base/json.h"

namespace distca {

/// The figures of a step that are shown.
struct ShownStep {
  int64_t step = 0, total_steps = 0;
  bool is_last = false;        // no step comes after it in this start of the run
  double time_s = 0;           // since 1970, when the step's line was made
  double left_s = 0;           // predicted until the run ends; after step 1 it is a guess
  std::optional<double> loss;  // none if the step had no target
  double grad_norm = 0, lr = 0;
  double imbalance_before = 1, imbalance_after = 1;  // max/mean
  double tokens_per_s = 0, share_of_peak = 0;
  /// Bytes of tensors now, on the rank that has the most. 0 means that they are not known.
  int64_t memory_bytes = 0;
  std::optional<double> validation_loss;  // nats per target; none if it was not measured
  /// The validation loss over the tokens at positions [begin, end) of their documents.
  struct Band {
    int64_t begin = 0, end = 0;
    double loss = 0;
  };
  std::vector<Band> by_position;
};

/// Reads it from a line of metrics.jsonl. Numbers that are not finite are NaN there. Throws
/// Error(kData), which names `place`, if the line is no run's.
ShownStep shown_step(const Json& line, std::string_view place);

/// A duration, as "0:07", "59:59", "2:05:30" or, from a day on, without seconds as "2d 03:15".
std::string clock_time(double seconds);

/// The line about a step. It has at most `columns` characters: the last fields are left out if they
/// do not fit. Step, loss, balance, speed and the time left fit 79 columns.
std::string progress_line(const ShownStep& step, size_t columns);
/// The line about the validation loss of a step, which was measured. If tokens lie in several bands
/// of positions, a second line has the loss of each, as "  by position  0-1K 2.611  1-4K 2.312".
std::string validation_lines(const ShownStep& step);

/// Predicts how long the rest of a run takes. The first step takes longer than those to come, so
/// from the second one on it does not count.
class TimeLeft {
 public:
  /// `first_step` is the first one that this start of the run trains.
  TimeLeft(int64_t first_step, int64_t total_steps)
      : first_step_(first_step), total_steps_(total_steps) {}
  /// Seconds, as seen at the end of a step, which took `step_s`. Call it after each step.
  double after(int64_t step, double step_s);

 private:
  int64_t first_step_, total_steps_;
  double first_step_end_s_ = 0;
};

/// Seconds without anything shown after which it is said what is under way.
inline constexpr double kSignOfLifeSeconds = 3;

/// The progress of one run on a console.
class Progress {
 public:
  explicit Progress(Console& console) : console_(console) {}
  /// Waits until a slow reader has read everything, but only for a short time if it is stuck.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const ShownStep& step);

 private:
  Console& console_;
  /// The time of the step that was shown last, from its own line, so that a run that is shown later
  /// reads the same.
  double last_shown_s_ = -1e9;
};

}  // namespace distca
