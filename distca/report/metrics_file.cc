#include "distca/report/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "distca/base/console.h"
#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/base/stop_signals.h"

namespace distca {

struct MetricsFile::State {
  explicit State(std::filesystem::path name)
      : path(std::move(name)),
        descriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
    if (descriptor.get() < 0) throw os_error(path, "cannot be written");
    size = lseek(descriptor.get(), 0, SEEK_END);
  }

  void run();
  void write_kept(std::unique_lock<std::mutex>& lock);
  bool write(const std::string& line);
  void sync();
  void give_up_oldest();
  void warn(const std::string& why);
  bool idle() const { return !asked && !busy; }
  /// Has the thread look at what is kept. Returns false if it has not done so within `most_s`.
  bool ask(std::unique_lock<std::mutex>& lock, double most_s);

  const std::filesystem::path path;
  const FileDescriptor descriptor;
  // The thread's.
  int64_t size = 0;   // bytes of whole lines
  bool torn = false;  // true if a part of a line follows them
  // For both threads, behind the mutex.
  std::mutex mutex;
  std::condition_variable changed;
  bool asked = false, busy = false, trying = false, syncs = false, stop = false, warned = false;
  std::deque<std::string> kept;  // lines that are not written yet, without the one that is tried
  size_t kept_bytes = 0;
  int64_t given_up = 0;  // lines that are lost
};

void MetricsFile::State::run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return asked || stop; });
    if (!asked) return;
    asked = false;
    busy = true;
    write_kept(lock);
    if (std::exchange(syncs, false)) {
      lock.unlock();
      sync();
      lock.lock();
    }
    busy = false;
    changed.notify_all();
  }
}

void MetricsFile::State::write_kept(std::unique_lock<std::mutex>& lock) {
  while (!kept.empty()) {
    std::string line = std::move(kept.front());
    kept.pop_front();
    trying = true;
    lock.unlock();
    const bool written = write(line);
    const int why = errno;
    lock.lock();
    trying = false;
    if (written) {
      kept_bytes -= line.size();
      continue;
    }
    kept.push_front(std::move(line));
    warn(fmt::format("cannot be written: {}", std::strerror(why)));
    break;
  }
  give_up_oldest();
}

/// The whole line, or nothing and errno.
bool MetricsFile::State::write(const std::string& line) {
  const int file = descriptor.get();
  if (torn && ftruncate(file, size) != 0) return false;
  torn = false;
  ssize_t written = 0;
  do {
    written = ::write(file, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) {
    size += written;
    return true;
  }
  if (written < 0) return false;
  torn = written > 0 && ftruncate(file, size) != 0;
  errno = ENOSPC;  // a short write has none; nearly always it is this
  return false;
}

void MetricsFile::State::sync() {
  if (fsync(descriptor.get()) == 0 || errno == EINVAL) return;
  standard_error().line(
      fmt::format("warning: {}: lines may be missing: {}", path.string(), std::strerror(errno)));
}

void MetricsFile::State::give_up_oldest() {
  for (; kept_bytes > kMostKept && !kept.empty(); ++given_up) {
    kept_bytes -= kept.front().size();
    kept.pop_front();
  }
}

void MetricsFile::State::warn(const std::string& why) {
  if (std::exchange(warned, true)) return;
  // Not with the "distca: " of a last word: the run goes on.
  standard_error().line(
      fmt::format("warning: {}: {}: training goes on, what is missing is tried again after each "
                  "step",
                  path.string(), why));
}

bool MetricsFile::State::ask(std::unique_lock<std::mutex>& lock, double most_s) {
  asked = true;
  changed.notify_all();
  return changed.wait_for(lock, std::chrono::duration<double>(most_s), [&] { return idle(); });
}

MetricsFile::MetricsFile(std::filesystem::path path, double patience_s)
    : state_(std::make_shared<State>(std::move(path))), patience_s_(patience_s) {
  const bool started = start_without_signals([state = state_] { state->run(); });
  DISTCA_THROW_IF(!started, ErrorKind::kIo, "{}: no thread can be had that writes it",
                  state_->path.string());
}

MetricsFile::~MetricsFile() {
  std::unique_lock lock(state_->mutex);
  if (!finished_) state_->ask(lock, kMostOfTheEnd);
  state_->stop = true;
  state_->changed.notify_all();
}

void MetricsFile::add(std::string line) {
  finished_ = false;
  std::unique_lock lock(state_->mutex);
  line += '\n';
  state_->kept_bytes += line.size();
  state_->kept.push_back(std::move(line));
  const bool hangs = !state_->idle();
  if (hangs) state_->give_up_oldest();
  if (!state_->ask(lock, hangs ? 0 : patience_s_) && !hangs)
    state_->warn(fmt::format("a line is not written within {:g} s", patience_s_));
}

int64_t MetricsFile::finish() {
  std::unique_lock lock(state_->mutex);
  state_->syncs = true;
  state_->ask(lock, kMostOfTheEnd);
  finished_ = true;
  return state_->given_up + static_cast<int64_t>(state_->kept.size()) + (state_->trying ? 1 : 0);
}

}  // namespace distca
