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

bool is_handled(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == handle;
}

}  // namespace

bool is_ignored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

std::string signal_name(int signal) {
  const char* const name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

StopSignals::StopSignals(std::function<std::string(const std::string& signal)> last_words) {
  if (pipe2(ends_, O_CLOEXEC) != 0) {
    throw Error(ErrorKind::kIo, "no pipe for signals: {}", std::strerror(errno));
  }
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  try {
    std::thread([from = ends_[0], words = std::move(last_words)] {
      char signal = 0;
      if (read(from, &signal, 1) == 1 && signal != 0) {
        say_last("distca: " + words(signal_name(signal)), kPatience);
        _exit(kStoppedExitCode);
      }
      close(from);
    }).detach();
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    close(ends_[0]);
    close(ends_[1]);
    throw Error(ErrorKind::kIo, "no thread for signals: {}", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  pipe_in = ends_[1];
  first_ns = 0;
  for (const int signal : kSignals) {
    if (!is_ignored(signal)) set_handler(signal, handle, SA_RESTART);
  }
}

StopSignals::~StopSignals() {
  for (const int signal : kSignals) {
    if (is_handled(signal)) set_handler(signal, SIG_DFL, 0);
  }
  // A handler that has just begun writes before this byte or nowhere.
  pipe_in = -1;
  const char end = 0;
  [[maybe_unused]] const ssize_t written = write(ends_[1], &end, 1);
  close(ends_[1]);
}

}  // namespace distca
