#include "distca/base/stop_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "distca/base/clock.h"
#include "distca/base/console.h"
#include "distca/base/error.h"

namespace distca {
namespace {

constexpr double kPatience = 1;  // seconds that a stuck terminal may hold up the end

std::atomic<int> pipe_in = -1;          // where the handler writes
std::atomic<double> latest_s = 0;       // time of the last signal that counted. 0 means none yet.
std::atomic<bool> ends_itself = false;  // the program has promised to, after the first signal

void handle(int signal) {
  const int before = errno;
  const double now = steady_seconds();
  double latest = latest_s;
  const bool is_first = latest == 0;
  const bool counts = is_first || now - latest > kOneStop;
  // Where handlers run on two threads at once, one of them counts.
  if (counts && latest_s.compare_exchange_strong(latest, now)) {
    if (is_first || ends_itself.exchange(false)) {
      const char byte = static_cast<char>(signal);
      [[maybe_unused]] const ssize_t written = write(pipe_in, &byte, 1);
    } else {
      std::signal(signal, SIG_DFL);  // raised within its handler, it comes when that returns
      raise(signal);
    }
  }
  errno = before;
}

bool handled_by(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == handler;
}

/// The object's thread: waits for the signals that the handler reports, or for the object's end.
void serve(const FileDescriptor& from, const std::function<bool(int signal)>& request,
           const std::function<std::string(const std::string& signal)>& exit_message) {
  char signal = 0;
  const auto signalled = [&] { return read(from.get(), &signal, 1) == 1 && signal != 0; };
  if (!signalled()) return;
  if (request(signal)) {
    ends_itself = true;
    if (!signalled()) return;
  }
  say_last("distca: " + exit_message(signal_name(signal)), kPatience);
  _exit(kStoppedExitCode);
}

}  // namespace

bool start_without_signals(std::function<void()> body) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  bool started = true;
  try {
    std::thread(std::move(body)).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return started;
}

bool is_ignored(int signal) { return handled_by(signal, SIG_IGN); }

std::string signal_name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

StopSignals::StopSignals(std::function<bool(int signal)> request,
                         std::function<std::string(const std::string& signal)> exit_message) {
  int ends[2];
  DISTCA_THROW_IF(pipe2(ends, O_CLOEXEC) != 0, ErrorKind::kIo, "no pipe for signals: {}",
                  std::strerror(errno));
  const auto read_end = std::make_shared<FileDescriptor>(ends[0]);
  write_end_ = FileDescriptor(ends[1]);
  const bool started = start_without_signals(
      [read_end, request, exit_message] { serve(*read_end, request, exit_message); });
  DISTCA_THROW_IF(!started, ErrorKind::kIo, "no thread for signals: {}", std::strerror(EAGAIN));
  pipe_in = write_end_.get();
  latest_s = 0;
  ends_itself = false;
  for (const int signal : kStopSignals) {
    if (!is_ignored(signal)) std::signal(signal, handle);  // calls of the system go on after it
  }
}

StopSignals::~StopSignals() {
  for (const int signal : kStopSignals) {
    if (handled_by(signal, handle)) std::signal(signal, SIG_DFL);
  }
  // A handler that has just begun writes before this byte or nowhere.
  pipe_in = -1;
  const char end = 0;
  [[maybe_unused]] const ssize_t written = write(write_end_.get(), &end, 1);
}

}  // namespace distca
