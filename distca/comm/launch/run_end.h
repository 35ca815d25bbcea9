#pragma once
// What the launcher says and returns at the end of a run: the failure that all others follow from,
// or what rank 0 said when somebody stopped the run. Pure.

#include <string>
#include <vector>

#include "distca/base/error.h"

namespace distca {

struct RankEnd {
  int status = 0;  // as waitpid gives it
  std::string last_words = {};
  bool ended_by_us = false;  // the launcher sent it a signal, after another rank's end
};

/// How all ranks of a run ended.
struct RunEnd {
  std::vector<RankEnd> ranks;
  std::vector<int> failed = {};  // ranks that nobody ended, in the order in which they did
  std::vector<int> late = {};    // ranks that were done, did not end and were killed
  int signal = 0;                // that stopped the run; 0: none
  bool failed_first = false;     // some rank had failed before that signal
  std::string diagnosis = {};    // of the ranks on the first failure (diagnosis.h); may be empty
  bool rank_0_finished = false;  // it had done all its work before it was late
  double late_after_s = 0;       // what ranks had to end, in seconds
};

/// The exit code of the run and at most one line.
LastWords last_words_of(const RunEnd& end);

/// "exited with code 3" or "was killed by signal 9 (SIGKILL)"; `status` as waitpid gives it.
std::string describe_exit(int status);

/// Whether a rank that ended so while a stop was under way did so because of it: with the exit code
/// of a stopped process, or by the signal, before it could handle it.
bool was_stopped(int status);

/// What rank 0 said that is said beside the run's last words, `line`: a warning, or in a stop what
/// is saved. Empty if there is nothing.
std::string words_beside(const std::string& line, const RunEnd& end);

}  // namespace distca
