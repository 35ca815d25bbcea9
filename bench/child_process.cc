#include "bench/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/error.h"

namespace distca::bench {
namespace {

constexpr double kMercy = 5;  // seconds between the end of its input and SIGKILL

/// Ends that no other child inherits.
void make_pipe(int (&ends)[2], const std::string& name) {
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(ErrorKind::kIo, "{}: no pipe: {}", name, std::strerror(errno));
}

}  // namespace

ChildProcess::ChildProcess(std::string name, const std::vector<std::string>& command)
    : name_(std::move(name)) {
  int input[2], output[2];
  make_pipe(input, name_);
  make_pipe(output, name_);
  to_ = input[1];
  from_ = output[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error = posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  if (error == 0) return;
  close(to_);
  close(from_);
  throw Error(ErrorKind::kIo, "{}: cannot run {}: {}", name_, command[0], std::strerror(error));
}

ChildProcess::~ChildProcess() {
  close(to_);
  close(from_);
  const Stopwatch watch;
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (watch.seconds() > kMercy) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void ChildProcess::write_line(const std::string& line) {
  const std::string all = line + "\n";
  size_t written = 0;
  // A program that has ended must be an error here, no signal.
  const auto old_handler = std::signal(SIGPIPE, SIG_IGN);
  while (written < all.size()) {
    const ssize_t now = write(to_, all.data() + written, all.size() - written);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) break;
    written += static_cast<size_t>(now);
  }
  std::signal(SIGPIPE, old_handler);
  if (written < all.size()) throw Error(ErrorKind::kIo, "{} has ended", name_);
}

std::string ChildProcess::read_line(double timeout_s, const std::string& awaited) {
  const double deadline = steady_seconds() + timeout_s;
  for (;;) {
    const size_t newline = received_.find('\n');
    if (newline != std::string::npos) {
      std::string line = received_.substr(0, newline);
      received_.erase(0, newline + 1);
      return line;
    }
    const double left_s = deadline - steady_seconds();
    pollfd ready{.fd = from_, .events = POLLIN, .revents = 0};
    const int found = poll(&ready, 1, std::max(0, static_cast<int>(left_s * 1e3)));
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0)
      throw Error(ErrorKind::kIo, "{}: no {} within {:.0f} s", name_, awaited, timeout_s);
    char buffer[1 << 16];
    const ssize_t got = read(from_, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw Error(ErrorKind::kIo, "{} ended without {}", name_, awaited);
    received_.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace distca::bench
