#pragma once
// The time after which a run ends by itself (train.exit_duration_in_mins). After each step it is
// predicted whether another one fits, together with what a run does at its end.
//
//     ExitTime exit_time(config, begin_s, /*validates=*/true, num_workers);
//     const bool ends = exit_time.is_last(steady_seconds(), watch.seconds(), evaluates,
//     last_save_s);
//
// Rank 0 decides, so that what ranks measure need not agree. Thread rule: one thread.

#include <deque>
#include <optional>
#include <string>

#include "distca/config/config.h"

namespace distca {

/// The moment at which the run was launched, on the clock of steady_seconds(). `started_at` is
/// kStartedAt's value, in Unix seconds; nothing means now, and so does a moment to come, by another
/// machine's clock. Throws Error(kUsage) if it is no such number.
double launch_begin_s(const std::optional<std::string>& started_at);

class ExitTime {
 public:
  /// `begin_s` is launch_begin_s(). `validates` is true if there is something to validate on.
  ExitTime(const Config& config, double begin_s, bool validates, int num_workers);

  /// Returns true if the run must end after this step, which took `step_s`, to end in time. Call it
  /// after each step. `evaluates`: the validation loss is measured after it in any case.
  /// `last_save_s` is CheckpointSaver::last_save_s().
  bool is_last(double now_s, double step_s, bool evaluates, double last_save_s);
  /// The validation loss was measured, which took so long.
  void evaluated(double seconds) { evaluated_s_ = seconds; }
  /// Seconds until the time is over, at least 0. It is infinite if none is set.
  double left_s(double now_s) const;

 private:
  double limit_s_, begin_s_;  // limit_s_ is infinite if none is set
  double validation_steps_;   // measuring the validation loss, guessed as a number of steps
  double save_guess_s_, weights_s_;
  bool awaits_saves_;  // a step may have to wait for a checkpoint of the one before
  std::optional<double> evaluated_s_;
  std::deque<double> recent_s_;  // lengths of the last steps
  int64_t steps_ = 0;
};

}  // namespace distca
