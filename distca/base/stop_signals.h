#pragma once
// What a process says when it is stopped by Ctrl-C, SIGTERM or SIGHUP: one line, then exit code
// 130.
//
// A signal that was ignored when the program began (nohup, `&` in a script) stays ignored. The
// second signal, later than kOneStop, ends the process at once: it is in a hurry.
// Thread rule: one object at a time, made and destroyed by the main thread; it starts a thread.

#include <functional>
#include <string>

namespace distca {

constexpr int kStoppedExitCode = 130;
/// Signals within so many seconds are one: whoever signals a process and then its group sends two.
constexpr double kOneStop = 0.5;

/// Whether the program was started with this signal ignored, or ignores it itself.
bool is_ignored(int signal);

/// "SIGINT".
std::string signal_name(int signal);

class StopSignals {
 public:
  /// `last_words` gets the signal's name and returns the line; on a thread of its own, while all
  /// others go on. Throws Error(kIo) if the system refuses a pipe or a thread.
  explicit StopSignals(std::function<std::string(const std::string& signal)> last_words);
  /// Signals end the process again without a word.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  int ends_[2] = {-1, -1};
};

}  // namespace distca
