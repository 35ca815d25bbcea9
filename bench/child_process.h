#pragma once
// A program that answers lines with lines, through pipes. Thread rule: one thread.

#include <sys/types.h>

#include <string>
#include <vector>

namespace distca::bench {

class ChildProcess {
 public:
  /// Starts `command` (program and arguments; its standard error is ours). `name` is what errors
  /// call it. Throws Error(kIo) if it cannot be run.
  ChildProcess(std::string name, const std::vector<std::string>& command);
  /// Closes its standard input, waits a moment for it to end, then kills it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Throws Error(kIo) when it has ended.
  void write_line(const std::string& line);
  /// Its next line, without the newline. Throws Error(kIo) when it has ended, or says nothing for
  /// `timeout_s` seconds; `awaited` is what the line was to be: "an answer to run".
  std::string read_line(double timeout_s, const std::string& awaited);

 private:
  std::string name_;
  pid_t pid_ = -1;
  int to_ = -1;    // its standard input
  int from_ = -1;  // its standard output
  std::string received_;
};

}  // namespace distca::bench
