#pragma once
// Launches of launch_test_child, for tests: real processes, whose output is read through a pipe.

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace distca {

/// Seconds: of a launch that ends by itself, however busy the machine. What it must not wait for
/// takes an hour.
constexpr double kLimit = 300;

/// How to launch.
struct Launch {
  int workers = 2;
  std::vector<std::string> mode;  // mode and rank, as launch_test_child takes them
  int port = 0;
  double stop_grace_s = 3600;
  int max_restarts = 0;
  std::map<std::string, std::string> environment = {};

  /// The words after the program's name.
  std::vector<std::string> arguments() const;
};

class Process {
 public:
  Process(std::vector<std::string> arguments, const std::map<std::string, std::string>& extra);
  explicit Process(const Launch& how);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  /// Reads until `text` has come `times` times, or the end.
  void read_until(const std::string& text, int times);
  /// The exit code; 128 + N for signal N.
  int wait();
  int wait_without_reading();

  std::string output = {};

 private:
  bool read_some();

  pid_t pid_ = -1;
  int from_ = -1;
  bool ended_ = false;
};

std::set<pid_t> pids_in(const std::string& output);

/// Returns true if the process still runs. A zombie that nobody has waited for yet does not.
bool runs(pid_t pid);

struct Outcome {
  int exit_code = 0;
  double seconds = 0;
  std::string output;
};

/// Waits for the end, and that no process is left.
Outcome launch(const Launch& how);

/// Times that `text` stands in `output`.
int count(const std::string& output, const std::string& text);
int count_errors(const std::string& output);

uint16_t free_port();

}  // namespace distca
