#pragma once
// Writes to stdout what a run does: its first words, a line about each step, and its last words. On
// a terminal, a step's line is overwritten by the next one. Elsewhere, one comes every few seconds.
// A validation loss has a line of its own, which stays. Training never waits for a reader
// (base/console.h). Only rank 0 uses it, from one thread.

#include <cstdint>
#include <optional>
#include <string>

#include "distca/base/console.h"
#include "distca/train/metrics.h"

namespace distca {

/// A duration, as "0:07", "59:59", "2:05:30" or, from a day on, without seconds as "2d 03:15".
std::string clock_time(double seconds);

/// The line about a step. It has at most `columns` characters: the last fields are left out if they
/// do not fit. Step, loss, balance, speed and the time left fit 79 columns. `left_s` is the
/// predicted time until the run ends, which is a guess in step 1.
std::string progress_line(const StepMetrics& metrics, int64_t total_steps, double left_s,
                          size_t columns);
/// The line about the validation loss of a step, which was measured.
std::string validation_line(const StepMetrics& metrics, int64_t total_steps);

/// The progress of one run on a console.
class Progress {
 public:
  /// `first_step` is the first one that this start of the run trains.
  Progress(Console& console, int64_t first_step, int64_t total_steps);
  /// Waits until a slow reader has read everything, but only for a short time if it is stuck.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Writes what is about to be run. If step 1 takes long, a line says that it is under way.
  void begin(const std::string& text);
  /// Shows a step.
  void show(const StepMetrics& metrics);
  /// Writes the last words, which say what the run achieved.
  void end(const std::string& text);

 private:
  double left_s(const StepMetrics& metrics);

  Console& console_;
  int64_t first_step_, total_steps_;
  double first_step_end_s_ = 0;  // the time left is predicted from the steps after it
  double last_shown_s_ = -1e9;
};

}  // namespace distca
