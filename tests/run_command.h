#pragma once
// Runs the real program as a user would, each time in a process group of its own, and says what it
// printed and left behind. One thread.

#include <sys/types.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/json.h"

namespace distca::testing {

struct Outcome {
  int exit_code = 0;  // 128 + N when signal N ended it, as a shell says it
  std::string out;
  std::string err;
};

/// Where a program prints instead of into files that Outcome shows.
struct Streams {
  static constexpr int kFile = -1, kClosed = -2;
  int out = kFile, err = kFile;  // a file descriptor, or one of these
};

/// For /bin/sh, in a folder; `distca` is the program under test.
struct ShellLine {
  std::string text;
  std::filesystem::path folder;
  std::map<std::string, std::string> environment = {};
};

/// A running `distca`; what is left of it is killed when this is destroyed.
class Program {
 public:
  /// The environment is ours without the variables by which launchers number ranks, plus
  /// `environment`. Throws std::runtime_error if no process can be made.
  explicit Program(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment = {},
                   const Streams& streams = {});
  explicit Program(const ShellLine& line);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  /// To the whole group, as a terminal's Ctrl-C.
  void signal_group(int signal) const;
  /// The child that runs this rank; throws std::runtime_error if there is none.
  pid_t pid_of_rank(int rank) const;
  /// Processes of the group that are not zombies.
  std::vector<pid_t> processes() const;
  /// Waits for the first process, not for its children. Throws std::runtime_error with what was
  /// printed when it takes longer.
  Outcome wait(double limit_s = 100);

 private:
  void start(std::vector<std::string> command,
             const std::map<std::string, std::string>& environment, const Streams& streams);
  std::string output(std::FILE* file) const;

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> out_{std::tmpfile(), std::fclose};
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> err_{std::tmpfile(), std::fclose};
  pid_t pid_ = -1;
  bool ended_ = false;
};

Outcome run_distca(const std::vector<std::string>& arguments);
/// Expects exit code 2 and, on stderr, one line that begins with "distca: error: "; returns the
/// rest of it.
std::string refusal(const std::vector<std::string>& arguments);

/// A port that was free a moment ago.
std::string free_port();
/// What torchrun tells a rank, but for an agent that keeps a store.
std::map<std::string, std::string> torchrun_environment(int rank, int size,
                                                        const std::string& port);

/// Arguments of `distca train` for a model of two layers on the data set at `prefix`, with `more`
/// behind.
std::vector<std::string> train_arguments(const std::filesystem::path& prefix,
                                         const std::filesystem::path& output,
                                         const std::vector<std::string>& more);

/// 40 files of text with structure to learn, 20 to 3000 bytes long, made into PREFIX.bin and
/// PREFIX.idx in the folder; returns PREFIX.
std::filesystem::path make_data_set(const std::filesystem::path& folder);

/// One object a line; a last line without its end is left out.
std::vector<Json> read_json_lines(const std::filesystem::path& path);

/// Paths below a folder, relative to it and sorted.
std::vector<std::string> files_below(const std::filesystem::path& folder);

}  // namespace distca::testing
