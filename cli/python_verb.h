#pragma once
// Verbs, or parts of them, that are written in Python. Each is one file that the build puts next to
// the program (cli/CMakeLists.txt). The Python that runs it is the one that the environment
// variable DISTCA_PYTHON names, or python3 of PATH. Linux.
//
//   PythonVerb tokenizer("distca-tokenize", {"tokenizer.json", "special"});
//   const std::string line = tokenizer.line();

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distca/base/file.h"

namespace distca::cli {

/// The packages that Python finds. With kNone it looks neither at the environment (PYTHONPATH and
/// so on) nor at the user's own packages.
enum class PythonPackages : uint8_t { kNone, kUsers };

/// This process goes on as the verb. Throws Error(kIo) if there is no Python.
[[noreturn]] void become_python(const std::string& verb, const std::vector<std::string>& arguments,
                                PythonPackages packages);

/// A verb as a child, whose standard output this process reads, and whose standard input it writes.
/// The child's standard error is this process's.
/// Thread rule: one thread.
class PythonVerb {
 public:
  /// Throws Error(kIo) if it cannot be started.
  PythonVerb(const std::string& verb, const std::vector<std::string>& arguments);
  /// Does not read on: a child that still prints ends with SIGPIPE, one that reads finds the end of
  /// its input. Waits for it.
  ~PythonVerb();
  PythonVerb(const PythonVerb&) = delete;
  PythonVerb& operator=(const PythonVerb&) = delete;

  /// The next line that it prints, without the line's end, or so many bytes. Both throw Error(kIo)
  /// if it ends before.
  std::string line();
  void read(std::span<std::byte> bytes);
  /// These give it a text, or say that there is no more. write() returns false if it has ended.
  bool write(std::string_view text);
  void end_input();

 private:
  [[noreturn]] void ended();
  void wait();

  std::string verb_;
  FileDescriptor in_;
  std::FILE* out_ = nullptr;
  pid_t child_ = -1;
  int status_ = 0;
};

}  // namespace distca::cli
