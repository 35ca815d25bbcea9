#pragma once
// A program that answers lines with lines, through a socket. Thread rule: one thread.

#include <sys/types.h>

#include <string>
#include <vector>

namespace distca::bench {

class ChildProcess {
 public:
  /// Starts `command` (program and arguments; its standard error is ours). `name` is what errors
  /// call it; it may say nothing for `timeout_s` seconds. Throws Error(kIo) if it cannot be run.
  ChildProcess(std::string name, const std::vector<std::string>& command, double timeout_s = 30);
  /// Closes its standard input, waits a moment for it to end, then kills it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Throws Error(kIo) when it has ended.
  void write_line(const std::string& line);
  /// Its next line, without the newline. Throws Error(kIo) when it has ended, or says nothing in
  /// time; `awaited` is what the line was to be: "an answer to run".
  std::string read_line(const std::string& awaited);

 private:
  std::string name_;
  pid_t pid_ = -1;
  int socket_ = -1;  // to its standard input, from its standard output
  std::string received_;
};

}  // namespace distca::bench
