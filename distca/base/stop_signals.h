#pragma once
// Lets a process end in good order when Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 asks it to (batch
// systems send such a signal some time before they kill).
//
//     const StopSignals stop([&](int) { return stop_after_this_step.request(); },
//                            [&](const std::string& signal) { return "stopped by " + signal; });
//
// At the first signal the program is asked whether it will end by itself. If it will, it goes on:
// it may finish what it is at and save. If it will not, the process says one last line and ends
// with exit code 130. If a second signal comes more than kOneStop seconds after the first, the
// process ends at once, because whoever sent it does not want to wait: with the last line and exit
// code 130 if the program was going on, and by the signal itself otherwise.
//
// A signal that was ignored when the program began (by nohup, or `&` in a script) stays ignored.
//
// Thread rule: only one object may exist at a time. The main thread makes and destroys it. The
// object starts a thread of its own.

#include <csignal>
#include <functional>
#include <string>

#include "distca/base/file.h"

namespace distca {

/// The exit code of a process that such a signal has stopped.
constexpr int kStoppedExitCode = 130;
/// The signals that ask a process to end.
constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
/// Signals within so many seconds count as one, because whoever signals a process and then its
/// group sends two.
constexpr double kOneStop = 0.5;

/// Runs `body` on a thread of its own that nobody waits for and that gets no signal: those are for
/// threads that expect them. Returns false if the system has no thread to give.
bool start_without_signals(std::function<void()> body);

/// Returns true if this process ignores a signal, because it was started so or because it chose to.
bool is_ignored(int signal);

/// The name of a signal, for example "SIGINT".
std::string signal_name(int signal);

class StopSignals {
 public:
  /// Both functions are called on the object's thread while all other threads go on, and must not
  /// throw. `request` gets the first signal and returns whether the process will end by itself.
  /// `exit_message` gets the name of the signal that ends the process and returns the line. Throws
  /// Error(kIo) if the system refuses a pipe or a thread.
  StopSignals(std::function<bool(int signal)> request,
              std::function<std::string(const std::string& signal)> exit_message);
  /// From here on, a signal ends the process without a word again.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  FileDescriptor write_end_;  // the pipe to the object's thread
};

}  // namespace distca
