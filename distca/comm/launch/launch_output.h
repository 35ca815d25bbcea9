#pragma once
// The output of a local rank, passed on line by line with "[rank N] " before it. The pipes are
// always read, whether or not anybody reads us: a rank never waits for a terminal (console.h).
// Thread rule: one thread.

#include <string>

#include "distca/base/console.h"
#include "distca/base/file.h"

namespace distca {

/// The beginning of a line that a program of ours says last, on stderr.
constexpr const char* kExitMessage = "distca: ";

/// One stream of one rank.
class RankStream {
 public:
  RankStream() = default;
  /// Makes the pipe. With `hold_exit_message` lines that begin with kExitMessage are held back.
  /// Throws Error(kIo).
  RankStream(int rank, Console& to, bool hold_exit_message);

  /// Our end, to be polled. -1 means none, or closed.
  int from() const { return from_.get(); }
  /// The rank's end, which becomes its stdout or stderr; closed by close_rank_end().
  int rank_end() const { return rank_end_.get(); }
  void close_rank_end() { rank_end_ = FileDescriptor(); }
  /// Passes on what is there.
  void pass_on();
  /// The first line that was held back; empty if none.
  const std::string& exit_message() const { return exit_message_; }

 private:
  void emit();

  int rank_ = -1;
  Console* to_ = nullptr;
  bool hold_exit_message_ = false;
  FileDescriptor from_, rank_end_;
  std::string line_, exit_message_;
};

}  // namespace distca
