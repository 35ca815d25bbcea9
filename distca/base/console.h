#pragma once
// What a long run says: text for a stream whose reader may be slow, stuck (a paused terminal, a
// full pipe) or gone. A thread of its own writes, so no caller ever waits for a reader; what does
// not fit into a bounded buffer is dropped and counted: "... 12 lines not shown". A reader that is
// gone is forgotten in silence, and so is a disk that is full, but write_error() tells.
//
// On a terminal one line at the bottom may be overwritten in place: the progress line.
//
// Thread rule: any thread, all calls. A program that means to write after a reader has gone ignores
// SIGPIPE.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace distca {

struct ConsoleOptions {
  size_t capacity = size_t{1} << 16;  // bytes that wait to be written
  /// Another process may have left an unfinished line on this terminal: it is cleared first.
  bool shared = false;
};

class Console {
 public:
  /// `fd` stays the caller's. No thread starts before the first word.
  explicit Console(int fd, ConsoleOptions options = {});
  /// Does not wait: finish() does.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool is_terminal() const;
  /// Of the terminal; without one, or where it does not say, 80.
  size_t columns() const;

  /// One or more whole lines; the newline at the end is added. On a terminal they take the place of
  /// the progress line.
  void line(std::string_view text);
  /// Likewise, even where the buffer is full: for the few last words of a run.
  void important(std::string_view text);
  /// On a terminal the text, shorter than columns(), takes the place of the progress line;
  /// elsewhere it is a line.
  void progress(std::string_view text);
  /// progress(text) after `seconds`, unless something is said before.
  void progress_after(double seconds, std::string text);
  /// The progress line, if there is one, stays for ever: what comes next begins below it.
  void keep_progress();
  /// Returns when all is written, at once when the reader is gone, and when it has taken nothing
  /// for `patience_s`. Afterwards it may be gone on with.
  void finish(double patience_s);
  /// The errno for which nothing is written any more; 0: all is well, or the reader has gone (of a
  /// pipe, or of a terminal that was closed).
  int write_error() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which a stuck reader keeps
};

/// Of this process; they live until it ends.
Console& standard_output();
Console& standard_error();

/// How long a process that is about to end waits for a reader that takes nothing.
constexpr double kConsolePatience = 3;  // seconds

/// The last line of a process, on stderr, below whatever stands on the terminal, in time for the
/// end: takes at most about twice `patience_s` longer than a reader that reads.
void say_last(std::string_view line, double patience_s = kConsolePatience);

/// File descriptors 0 to 2 that are closed become /dev/null, so that no file of ours takes their
/// numbers and what is meant for people. Before anything is opened.
void open_standard_streams();

}  // namespace distca
