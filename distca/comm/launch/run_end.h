#pragma once
// The exit message and the exit code of the launcher at the end of a run: the failure that all
// others follow from, or what rank 0 said when somebody stopped the run. Pure.

#include <string>
#include <vector>

#include "distca/base/error.h"

namespace distca {

struct RankEnd {
  int status = 0;  // a status of waitpid
  std::string exit_message = {};
  bool ended_by_us = false;  // the launcher sent it a signal, after another rank's end
};

/// How all ranks of a run ended.
struct RunEnd {
  std::vector<RankEnd> ranks;
  std::vector<int> failed = {};  // ranks that nobody ended, in the order in which they did
  std::vector<int> late = {};    // ranks that were done, did not end and were killed
  int signal = 0;                // The signal that stopped the run. 0 means none.
  bool failed_first = false;     // some rank had failed before that signal
  std::string diagnosis = {};    // the ranks', on the first failure (diagnosis.h); may be empty
  bool rank_0_finished = false;  // it had done all its work before it was late
  double late_after_s = 0;       // seconds that ranks had to end
};

/// The exit code of the run and at most one line.
ExitMessage exit_message_of(const RunEnd& end);

/// "exited with code 3" or "was killed by signal 9 (SIGKILL)"; `status` as waitpid gives it.
std::string describe_exit(int status);

/// Returns true if a rank that ended so while a stop was under way did so because of it: with the
/// exit code of a stopped process, or by the signal, before it could handle it.
bool was_stopped(int status);

/// Returns the words of rank 0 that are printed in addition to the run's exit message, `line`: a
/// warning, or in a stop what is saved. Empty if there are none.
std::string message_beside(const std::string& line, const RunEnd& end);

}  // namespace distca
