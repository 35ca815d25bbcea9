#pragma once
// What a run says on stdout while it goes: its first words, a line about each step, its last words.
// On a terminal the line is overwritten in place and stays where a validation loss was measured;
// elsewhere it comes every few seconds. Training never waits for a reader (console.h). Rank 0 only;
// one thread.

#include <cstdint>
#include <optional>
#include <string>

#include "distca/base/console.h"
#include "distca/train/metrics.h"

namespace distca {

/// "0:07", "59:59", "2:05:30", "3d 00:00:10".
std::string clock_time(double seconds);

/// The line about a step, of at most `columns`: fields that do not fit are left out, from the last.
/// `left_s`: until the run ends; step 1 can only guess.
std::string progress_line(const StepMetrics& metrics, int64_t total_steps, double left_s,
                          size_t columns);

class Progress {
 public:
  Progress(Console& console, int64_t total_steps);
  /// Waits for a reader that is slow, for a short time if it is stuck.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What is about to be run; says that step 1 is under way if that takes long.
  void begin(const std::string& text);
  void show(const StepMetrics& metrics);
  /// What came of it.
  void end(const std::string& text);

 private:
  double left_s(const StepMetrics& metrics);

  Console& console_;
  int64_t total_steps_;
  double first_step_end_s_ = 0;
  double last_shown_s_ = -1e9;
};

}  // namespace distca
