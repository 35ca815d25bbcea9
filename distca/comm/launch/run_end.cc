#include "distca/comm/launch/run_end.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <iterator>

#include "distca/base/stop_signals.h"
#include "distca/comm/launch/launch_output.h"

namespace distca {
namespace {

std::string stopped_by() { return fmt::format("{}stopped by ", kExitMessage); }

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 1; }

/// Returns what rank 0 said about where it was, or why it said nothing.
std::string stopped(const RunEnd& end) {
  const RankEnd& first = end.ranks.front();
  if (first.exit_message.starts_with(stopped_by())) return first.exit_message;
  return fmt::format("{}{}; {}", stopped_by(), signal_name(end.signal),
                     first.status == 0 ? "rank 0 had ended: the weights are saved"
                                       : "rank 0 did not say at which step; what is saved is in "
                                         "the run's checkpoints");
}

/// The first rank that failed for a reason of its own; null if all failed because of another.
const int* find_cause(const RunEnd& end) {
  // Ranks that ended with the diagnosis on another are victims of it.
  const auto cause = std::ranges::find_if(end.failed, [&](int rank) {
    return end.diagnosis.empty() ||
           end.ranks[rank].exit_message.find(end.diagnosis) == std::string::npos;
  });
  return cause == end.failed.end() ? nullptr : &*cause;
}

ExitMessage failure_of(int rank, const RunEnd& end) {
  const RankEnd& first = end.ranks[rank];
  const int exit_code = exit_code_of(first.status);
  if (!first.exit_message.empty()) return {exit_code, first.exit_message};
  const std::string death = fmt::format("rank {} {}", rank, describe_exit(first.status));
  const std::string hint =
      WIFSIGNALED(first.status) && WTERMSIG(first.status) == SIGKILL
          ? "; not by us: often it is the kernel, for lack of memory (see dmesg)"
          : "";
  const std::string& why = end.diagnosis.starts_with(death) ? end.diagnosis : death;
  return {exit_code, fmt::format("{}error: {}{}", kExitMessage, why, hint)};
}

/// Rank 0 saves: its exit code is the run's, unless another rank failed on its own.
ExitMessage after_a_stop(const RunEnd& end) {
  const int status = end.ranks.front().status;
  if (exit_code_of(status) != kStoppedExitCode) {
    if (const int* const cause = find_cause(end)) return failure_of(*cause, end);
  }
  return {status == 0 ? 0 : kStoppedExitCode, stopped(end)};
}

/// The exit message on ranks that were done, and on the weights that rank 0 may have been saving.
ExitMessage after_late_ranks(const RunEnd& end) {
  if (std::ranges::find(end.late, 0) != end.late.end() && !end.rank_0_finished) {
    constexpr auto kSilent =
        "{}error: rank 0 gave no sign of life within {:.1f} s and was killed; it was saving the "
        "weights";
    return {1, fmt::format(kSilent, kExitMessage, end.late_after_s)};
  }
  constexpr auto kLate =
      "{}rank {} was done but did not end within {:.1f} s and was killed; the run is complete";
  return {0, fmt::format(kLate, kExitMessage, end.late.front(), end.late_after_s)};
}

/// A signal that reached ranks, but not us, also stops the run. What rank 0 says of one that we
/// sent it, or that followed from another rank's failure, is no reason.
bool is_stopped_behind_us(const RunEnd& end) {
  const RankEnd& first = end.ranks.front();
  const int code = exit_code_of(first.status);
  if (end.signal != 0 || first.ended_by_us || (code != 0 && code != kStoppedExitCode) ||
      !first.exit_message.starts_with(stopped_by()))
    return false;
  const int* const cause = find_cause(end);
  return !cause || was_stopped(end.ranks[*cause].status);
}

}  // namespace

ExitMessage exit_message_of(const RunEnd& end) {
  if (is_stopped_behind_us(end)) {
    const RankEnd& first = end.ranks.front();
    return {exit_code_of(first.status), first.exit_message};
  }
  if (end.signal != 0 && !end.failed_first) return after_a_stop(end);
  if (!end.failed.empty()) {
    const int* const cause = find_cause(end);
    return failure_of(cause ? *cause : end.failed.front(), end);
  }
  return end.late.empty() ? ExitMessage{} : after_late_ranks(end);
}

std::string describe_exit(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exited with code {}", WEXITSTATUS(status));
  return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                     signal_name(WTERMSIG(status)));
}

bool was_stopped(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status) == kStoppedExitCode;
  return WIFSIGNALED(status) &&
         std::ranges::find(kStopSignals, WTERMSIG(status)) != std::end(kStopSignals);
}

std::string message_beside(const std::string& line, const RunEnd& end) {
  const std::string& said = end.ranks.front().exit_message;
  const bool is_reported = said.starts_with(fmt::format("{}warning", kExitMessage)) ||
                           (end.signal != 0 && said.starts_with(stopped_by()));
  return is_reported && said != line ? said : "";
}

}  // namespace distca
