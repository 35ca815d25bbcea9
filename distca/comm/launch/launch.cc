#include "distca/comm/launch/launch.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>
#include <set>

#include "distca/base/console.h"
#include "distca/base/env.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/stop_signals.h"
#include "distca/comm/launch/launch_output.h"
#include "distca/comm/launch/local_run.h"

namespace distca {
namespace {

/// Makes the signals that the launcher handles readable. They stay blocked between two attempts, so
/// that none is lost.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t mask;
    sigemptyset(&mask);
    // A blocked signal is queued even if it is ignored: one that we were started to ignore (nohup,
    // `&` in a script) stays out.
    for (const int signal : kStopSignals) {
      if (!is_ignored(signal)) sigaddset(&mask, signal);
    }
    sigaddset(&mask, SIGCHLD);
    from_ = FileDescriptor(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
    if (from_.get() < 0) throw Error(ErrorKind::kIo, "no signalfd: {}", std::strerror(errno));
    std::signal(SIGCHLD, SIG_DFL);  // where it was ignored, waitpid would report nothing
    pthread_sigmask(SIG_BLOCK, &mask, &old_mask_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  int from() const { return from_.get(); }
  /// The signals that were blocked before.
  const sigset_t& old_mask() const { return old_mask_; }

 private:
  sigset_t old_mask_ = {};
  FileDescriptor from_;
};

/// Unlike that of any other launch, unless somebody gave us one.
std::string find_run_id() {
  if (const auto given = env_string("DISTCA_RUN_ID")) return *given;
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

/// Returns true if another attempt may help: not for bad input, nor where training went wrong or
/// somebody stopped the run.
bool may_restart(const Ended& ended) {
  static const std::set<int> final_codes = {0, kStoppedExitCode,
                                            Error(ErrorKind::kUsage, "").exit_code(),
                                            Error(ErrorKind::kTraining, "").exit_code()};
  return !ended.interrupted && !final_codes.contains(ended.words.exit_code);
}

/// The exit message of an attempt that another one follows.
std::string without_error(const std::string& line) {
  const std::string begin = fmt::format("{}error: ", kExitMessage);
  return line.starts_with(begin) ? kExitMessage + line.substr(begin.size()) : line;
}

}  // namespace

int launch_local(const LaunchOptions& options) {
  DISTCA_CHECK(options.workers > 0 && !options.command.empty(), "{} workers", options.workers);
  const BlockedSignals signals;
  Attempt attempt{
      .run_id = find_run_id(), .signals = signals.from(), .rank_mask = signals.old_mask()};
  Console& err = standard_error();
  const int restarts = options.max_restarts;
  while (true) {
    const Ended ended = run_local_ranks(options, attempt);
    std::string line = options.named ? options.named(ended.words.line) : ended.words.line;
    if (may_restart(ended) && attempt.restart < restarts) {
      err.important(
          fmt::format("{}; restart {} of {}", without_error(line), ++attempt.restart, restarts));
      continue;
    }
    if (may_restart(ended) && restarts > 0)
      line += fmt::format("; {} restart{} used up", restarts, restarts == 1 ? " was" : "s were");
    if (!line.empty()) err.important(line);
    err.finish(kConsolePatience);
    return ended.words.exit_code;
  }
}

}  // namespace distca
