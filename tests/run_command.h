#pragma once
// Runs the real program as a user would, each time in a process group of its own, and says what it
// printed and left behind. One thread.

#include <sys/types.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "distca/base/file.h"
#include "distca/base/json.h"

namespace distca::testing {

/// Seconds that anything may take here before it is said to hang. How fast a machine is, and what
/// else it does, is no matter of a test.
constexpr double kPatience = 300;

using Words = std::vector<std::string>;  // words of a command line
using Environment = std::map<std::string, std::string>;

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

/// A pipe: what is written into `in` comes out of `out`. An end to which a FileDescriptor() is
/// assigned is closed.
struct Pipe {
  Pipe();
  FileDescriptor out, in;
};

/// A line that /bin/sh runs in a folder; `distca` is the program under test.
struct ShellLine {
  std::string text;
  std::filesystem::path folder;
  Environment environment = {};
};

/// A running `distca`; what is left of it is killed when this is destroyed.
class Program {
 public:
  /// The environment is ours without the variables by which launchers number ranks, plus
  /// `environment`. Throws std::runtime_error if no process can be made.
  explicit Program(const Words& arguments, const Environment& environment = {},
                   const Streams& streams = {});
  explicit Program(const ShellLine& line);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  /// Sends a signal to the whole group, as a terminal does at Ctrl-C.
  void signal_group(int signal) const;
  /// The child that runs this rank; throws std::runtime_error if there is none.
  pid_t pid_of_rank(int rank) const;
  /// Processes of the group that are not zombies.
  std::vector<pid_t> processes() const;
  /// Waits for the first process, not for its children. Throws std::runtime_error with what was
  /// printed when it takes longer.
  Outcome wait(double limit_s = kPatience);

 private:
  void start(Words command, const Environment& environment, const Streams& streams);

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> out_{std::tmpfile(), std::fclose};
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> err_{std::tmpfile(), std::fclose};
  pid_t pid_ = -1;
  bool ended_ = false;
};

/// The words with `more` behind.
Words joined(Words words, const Words& more);

Outcome run_distca(const Words& arguments);
/// Expects exit code 0.
Outcome succeed(const Words& arguments);
/// Expects the exit code and, on stderr, one line that begins with "distca: error: "; returns the
/// rest of it.
std::string error_line(const Outcome& outcome, int exit_code);
/// The error line of a command that must end with exit code 2.
std::string refusal(const Words& arguments);

/// Waits for the condition. Returns true if it came true in time.
bool wait_until(const std::function<bool()>& condition, double limit_s = kPatience,
                double every_s = 0.01);

/// A port of all interfaces that is taken while this lives.
struct TakenPort {
  TakenPort();
  FileDescriptor socket;
  std::string port;
};
/// A port that was free a moment ago.
std::string free_port();
/// The variables that torchrun sets for a rank, without those of an agent that keeps a store.
Environment torchrun_environment(int rank, int size, const std::string& port);
/// Ranks 0 and 1 as torchrun starts them, with these arguments, until both have ended; [rank].
std::array<Outcome, 2> run_torchrun(const Words& rank_0, const Words& rank_1);

/// Arguments of `distca train` for a model of two layers on the data set at `prefix`, with `more`
/// behind.
Words train_arguments(const std::filesystem::path& prefix, const std::filesystem::path& output,
                      const Words& more);

/// 40 files of text with structure to learn, 20 to 3000 bytes long, made into PREFIX.bin and
/// PREFIX.idx in the folder; returns PREFIX.
std::filesystem::path make_data_set(const std::filesystem::path& folder);

/// One object a line; a last line without its end is left out.
std::vector<Json> read_json_lines(const std::filesystem::path& path);

/// Paths below a folder, relative to it and sorted; with what the files hold.
std::vector<std::string> files_below(const std::filesystem::path& folder);
std::map<std::string, std::string> read_files(const std::filesystem::path& folder);

}  // namespace distca::testing
