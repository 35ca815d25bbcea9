#pragma once
// Lets a process say one last line when Ctrl-C, SIGTERM or SIGHUP stops it. The process then ends
// with exit code 130.
//
// A signal that was ignored when the program began (by nohup, or `&` in a script) stays ignored. If
// a second signal comes more than kOneStop seconds after the first, the process ends at once,
// because whoever sent it does not want to wait.
//
// Thread rule: only one object may exist at a time. The main thread makes and destroys it. The
// object starts a thread of its own.

#include <functional>
#include <string>

#include "distca/base/file.h"

namespace distca {

/// The exit code of a process that such a signal has stopped.
constexpr int kStoppedExitCode = 130;
/// Signals within so many seconds count as one, because whoever signals a process and then its
/// group sends two.
constexpr double kOneStop = 0.5;

/// Whether this process ignores a signal, because it was started so or because it chose to.
bool is_ignored(int signal);

/// The name of a signal, for example "SIGINT".
std::string signal_name(int signal);

class StopSignals {
 public:
  /// `last_words` gets the signal's name and returns the line. It is called on the object's thread
  /// while all other threads go on. Throws Error(kIo) if the system refuses a pipe or a thread.
  explicit StopSignals(std::function<std::string(const std::string& signal)> last_words);
  /// From here on, a signal ends the process without a word again.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  FileDescriptor write_end_;  // of the pipe to the thread that speaks
};

}  // namespace distca
