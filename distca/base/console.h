#pragma once
// Writes the text of a long run to a terminal, a file or a pipe without ever waiting for the
// reader, who may be slow, stuck (a paused terminal, a full pipe) or gone.
//
//     Console& out = standard_output();
//     out.line("training starts");
//     out.progress("step 1/100");        // on a terminal, overwritten by the next progress line
//     out.finish(kConsolePatience);
//
// A thread of the console's own does the writing. Text waits in a buffer of limited size. Text that
// does not fit is dropped, and a line such as "... 12 lines not shown" counts it. When the reader
// has gone or the disk is full, the console drops all further text silently; write_error() says so.
//
// Thread rule: any thread may make any call. A program that wants to go on after a reader has gone
// must ignore SIGPIPE.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace distca {

/// How a Console is to behave.
struct ConsoleOptions {
  size_t capacity = size_t{1} << 16;  // bytes of text that may wait to be written
  /// Set it if another process may have left an unfinished line on this terminal. The console then
  /// clears that line before it writes.
  bool shared = false;
};

class Console {
 public:
  /// The caller keeps ownership of the file descriptor `fd`. The console's thread starts with the
  /// first text.
  explicit Console(int fd, ConsoleOptions options = {});
  /// Does not wait until everything is written; call finish() for that.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Returns true if `fd` is a terminal that can show a progress line (TERM is not "dumb").
  bool is_terminal() const;
  /// The width of the terminal in characters; 80 without a terminal or where it is unknown.
  size_t columns() const;

  /// Writes one or more whole lines and adds the newline at the end. On a terminal, they take the
  /// place of the progress line.
  void line(std::string_view text);
  /// Does the same, even if the buffer is full. It is meant for the few exit message of a run.
  void important(std::string_view text);
  /// On a terminal, `text` replaces the progress line at the bottom; it must be shorter than
  /// columns(). Elsewhere, `text` is written as a line.
  void progress(std::string_view text);
  /// Calls progress(text) after `seconds`, unless other text is written before that.
  void progress_after(double seconds, std::string text);
  /// Leaves the progress line, if there is one, where it is. Later text begins below it.
  void keep_progress();
  /// Returns when everything is written, when the reader has gone, or when the reader has taken
  /// nothing for `patience_s` seconds. The console can be used afterwards.
  void finish(double patience_s);
  /// Returns the errno (ENOSPC, for example) that made the console stop writing. Returns 0 if
  /// nothing went wrong, or if the reader has gone: a closed pipe or terminal is not an error.
  int write_error() const;
  /// Returns true once the console has stopped writing, because of an error or because the reader
  /// has gone.
  bool is_closed() const;

 private:
  struct State;
  // Shared with the thread, which outlives the console if the reader is stuck.
  std::shared_ptr<State> state_;
};

/// The consoles of this process, on file descriptors 1 and 2. They live until the process ends.
Console& standard_output();
Console& standard_error();

/// How long a process that is about to end waits for a reader that takes nothing.
constexpr double kConsolePatience = 3;  // seconds

/// Writes the last line of a process to stderr, below everything else on the terminal, and returns
/// soon enough for the process to end. With a stuck reader, it takes at most about twice
/// `patience_s` seconds longer than with one that reads.
void say_last(std::string_view line, double patience_s = kConsolePatience);

/// Opens /dev/null in place of those file descriptors 0 to 2 that are closed. Otherwise, a file
/// that we open later would get such a number, and text for people would be written into it. Call
/// it before anything is opened.
void open_standard_streams();

}  // namespace distca
