#include "bench/child_process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/error.h"

namespace distca::bench {
namespace {

constexpr double kKillDelay = 5;  // seconds between the end of its input and SIGKILL

}  // namespace

ChildProcess::ChildProcess(std::string name, const std::vector<std::string>& command,
                           double timeout_s)
    : name_(std::move(name)) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorKind::kIo, "{}: no socket: {}", name_, std::strerror(errno));
  socket_ = ends[0];
  const timeval timeout{.tv_sec = static_cast<time_t>(timeout_s),
                        .tv_usec = std::lround(1e6 * std::fmod(timeout_s, 1))};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO})
    posix_spawn_file_actions_adddup2(&actions, ends[1], stream);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error = posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error == 0) return;
  close(socket_);
  throw Error(ErrorKind::kIo, "{}: cannot run {}: {}", name_, command[0], std::strerror(error));
}

ChildProcess::~ChildProcess() {
  close(socket_);
  const Stopwatch watch;
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (watch.seconds() > kKillDelay) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void ChildProcess::write_line(const std::string& line) {
  const std::string all = line + "\n";
  // A program that has ended must be an error here, no signal.
  for (size_t written = 0; written < all.size();) {
    const ssize_t now = send(socket_, all.data() + written, all.size() - written, MSG_NOSIGNAL);
    if (now < 0 && errno != EINTR) throw Error(ErrorKind::kIo, "{} has ended", name_);
    written += static_cast<size_t>(std::max<ssize_t>(now, 0));
  }
}

std::string ChildProcess::read_line(const std::string& awaited) {
  for (;;) {
    const size_t newline = received_.find('\n');
    if (newline != std::string::npos) {
      std::string line = received_.substr(0, newline);
      received_.erase(0, newline + 1);
      return line;
    }
    char buffer[1 << 16];
    const ssize_t got = recv(socket_, buffer, sizeof(buffer), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN)
      throw Error(ErrorKind::kIo, "{}: no {} in time", name_, awaited);
    if (got <= 0) throw Error(ErrorKind::kIo, "{} ended without {}", name_, awaited);
    received_.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace distca::bench
