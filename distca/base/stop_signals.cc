#include "distca/base/stop_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <thread>

#include "distca/base/console.h"
#include "distca/base/error.h"

namespace distca {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr double kPatience = 1;  // seconds that a stuck terminal may hold up the end

std::atomic<int> pipe_in = -1;      // where the handler writes
std::atomic<int64_t> first_ns = 0;  // when the first signal came; 0: none has

int64_t monotonic_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

void handle(int signal) {
  const int before = errno;
  int64_t first = 0;
  const int64_t now = monotonic_ns();
  if (first_ns.compare_exchange_strong(first, now)) {
    const char byte = static_cast<char>(signal);
    [[maybe_unused]] const ssize_t written = write(pipe_in, &byte, 1);
  } else if (static_cast<double>(now - first) > 1e9 * kOneStop) {
    std::signal(signal, SIG_DFL);  // raised within its handler, it comes when that returns
    raise(signal);
  }
  errno = before;
}

void set_handler(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

bool handled_by(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == handler;
}

}  // namespace

bool is_ignored(int signal) { return handled_by(signal, SIG_IGN); }

std::string signal_name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

StopSignals::StopSignals(std::function<std::string(const std::string& signal)> last_words) {
  int ends[2];
  DISTCA_THROW_IF(pipe2(ends, O_CLOEXEC) != 0, ErrorKind::kIo, "no pipe for signals: {}",
                  std::strerror(errno));
  FileDescriptor read_end(ends[0]);
  write_end_ = FileDescriptor(ends[1]);
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  try {
    std::thread([from = std::move(read_end), words = std::move(last_words)] {
      char signal = 0;
      if (read(from.get(), &signal, 1) != 1 || signal == 0) return;
      say_last("distca: " + words(signal_name(signal)), kPatience);
      _exit(kStoppedExitCode);
    }).detach();
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    throw Error(ErrorKind::kIo, "no thread for signals: {}", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  pipe_in = write_end_.get();
  first_ns = 0;
  for (const int signal : kSignals) {
    if (!is_ignored(signal)) set_handler(signal, handle, SA_RESTART);
  }
}

StopSignals::~StopSignals() {
  for (const int signal : kSignals) {
    if (handled_by(signal, handle)) set_handler(signal, SIG_DFL, 0);
  }
  // A handler that has just begun writes before this byte or nowhere.
  pipe_in = -1;
  const char end = 0;
  [[maybe_unused]] const ssize_t written = write(write_end_.get(), &end, 1);
}

}  // namespace distca
