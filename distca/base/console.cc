#include "distca/base/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "distca/base/clock.h"
#include "distca/base/env.h"
#include "distca/base/stop_signals.h"

namespace distca {
namespace {

constexpr std::string_view kClearLine = "\r\033[K";
constexpr size_t kMostAtOnce = 4096;  // bytes: what one write may take is seen as it goes

}  // namespace

struct Console::State : std::enable_shared_from_this<State> {
  struct Chunk {
    std::string text;
    bool progress = false;  // outdated by what is said next
  };

  State(int fd, ConsoleOptions options) : fd(fd), options(options) {}

  const int fd;
  const ConsoleOptions options;
  const bool is_a_tty = isatty(fd) == 1;
  // True if `fd` can show a progress line.
  const bool terminal = is_a_tty && env_string("TERM") != "dumb";

  std::mutex mutex;
  std::condition_variable changed;
  bool started = false, stop = false, gone = false, writing = false;
  int write_error = 0;
  bool open = false;  // the last thing said is a progress line
  std::deque<Chunk> chunks;
  size_t bytes = 0;  // in chunks
  int64_t dropped = 0;
  int64_t taken = 0;                                    // bytes that the reader took
  std::optional<std::pair<double, std::string>> later;  // steady seconds, text

  void say(std::string text, bool progress, bool important = false);
  void put(std::string text, bool progress);
  std::string count_dropped();
  bool idle() const { return chunks.empty() && !writing; }
  void start();
  void run();
  bool write_out(const std::string& text, std::unique_lock<std::mutex>& lock);
};

/// The buffer takes it or counts it.
void Console::State::say(std::string text, bool progress, bool important) {
  start();
  if (gone) return;
  later.reset();
  if (!chunks.empty() && chunks.back().progress) {  // nobody has seen it
    bytes -= chunks.back().text.size();
    chunks.pop_back();
  }
  std::string before(terminal && (open || progress || options.shared) ? kClearLine : "");
  if (!important && bytes + before.size() + text.size() > options.capacity) {
    if (!progress) dropped += std::count(text.begin(), text.end(), '\n');
    return;
  }
  if (!progress) before += count_dropped();
  put(before + text, progress);
  open = progress;
}

std::string Console::State::count_dropped() {
  const int64_t lines = std::exchange(dropped, 0);
  return lines == 0 ? "" : fmt::format("... {} line{} not shown\n", lines, lines == 1 ? "" : "s");
}

void Console::State::put(std::string text, bool progress) {
  bytes += text.size();
  chunks.push_back({std::move(text), progress});
  changed.notify_all();
}

void Console::State::start() {
  if (std::exchange(started, true)) return;
  if (start_without_signals([self = shared_from_this()] { self->run(); })) return;
  gone = true;  // no thread to be had: the run matters more than its words
  write_error = EAGAIN;
}

void Console::State::run() {
  std::unique_lock lock(mutex);
  while (true) {
    while (chunks.empty() && !stop) {
      if (dropped > 0) {
        say("", /*progress=*/false);
      } else if (!later) {
        changed.wait(lock);
      } else if (const double wait_s = later->first - steady_seconds(); wait_s > 0) {
        changed.wait_for(lock, std::chrono::duration<double>(wait_s));
      } else {
        const std::string text = std::exchange(later, std::nullopt)->second;
        say(terminal ? text : text + "\n", terminal);
      }
    }
    if (chunks.empty()) return;
    Chunk chunk = std::move(chunks.front());
    chunks.pop_front();
    bytes -= chunk.text.size();
    writing = true;
    if (!write_out(chunk.text, lock)) gone = true;
    writing = false;
    if (gone) {
      chunks.clear();
      bytes = 0;
      dropped = 0;
    }
    changed.notify_all();
  }
}

/// False if there is nobody to write to. Unlocks meanwhile: this is where a stuck reader holds us.
bool Console::State::write_out(const std::string& text, std::unique_lock<std::mutex>& lock) {
  for (size_t done = 0; done < text.size();) {
    lock.unlock();
    const ssize_t written =
        write(fd, text.data() + done, std::min(text.size() - done, kMostAtOnce));
    const int why = written < 0 ? errno : 0;
    // A descriptor that somebody made non-blocking says so instead of waiting.
    if (why == EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    lock.lock();
    if (why != 0 && why != EINTR && why != EAGAIN) {
      const bool closed_terminal = why == EIO && is_a_tty;
      if (why != EPIPE && !closed_terminal) write_error = why;
      return false;
    }
    if (written <= 0) continue;
    done += static_cast<size_t>(written);
    taken += written;
    changed.notify_all();
  }
  return true;
}

Console::Console(int fd, ConsoleOptions options) : state_(std::make_shared<State>(fd, options)) {}

Console::~Console() {
  std::lock_guard lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
}

bool Console::is_terminal() const { return state_->terminal; }

size_t Console::columns() const {
  winsize size = {};
  return ioctl(state_->fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

void Console::line(std::string_view text) {
  std::lock_guard lock(state_->mutex);
  state_->say(fmt::format("{}\n", text), /*progress=*/false);
}

void Console::important(std::string_view text) {
  std::lock_guard lock(state_->mutex);
  state_->say(fmt::format("{}\n", text), /*progress=*/false, /*important=*/true);
}

void Console::progress(std::string_view text) {
  if (!state_->terminal) return line(text);
  std::lock_guard lock(state_->mutex);
  state_->say(std::string(text), /*progress=*/true);
}

void Console::progress_after(double seconds, std::string text) {
  std::lock_guard lock(state_->mutex);
  state_->start();
  state_->later.emplace(steady_seconds() + seconds, std::move(text));
  state_->changed.notify_all();
}

void Console::keep_progress() {
  std::lock_guard lock(state_->mutex);
  state_->later.reset();
  if (!std::exchange(state_->open, false) || state_->gone) return;
  if (!state_->chunks.empty()) state_->chunks.back().progress = false;
  state_->put("\n", /*progress=*/false);
}

void Console::finish(double patience_s) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.later.reset();
  int64_t taken = state.taken;
  const auto moved = [&] { return state.idle() || state.gone || state.taken != taken; };
  while (state.changed.wait_for(lock, std::chrono::duration<double>(patience_s), moved)) {
    if (state.idle() || state.gone) return;
    taken = state.taken;
  }
}

int Console::write_error() const {
  std::lock_guard lock(state_->mutex);
  return state_->write_error;
}

bool Console::is_closed() const {
  std::lock_guard lock(state_->mutex);
  return state_->gone;
}

// Never destroyed: other threads may speak until the process ends.
Console& standard_output() {
  static Console* const console = new Console(STDOUT_FILENO);
  return *console;
}

Console& standard_error() {
  static Console* const console = new Console(STDERR_FILENO, {.shared = true});
  return *console;
}

void say_last(std::string_view line, double patience_s) {
  standard_output().keep_progress();
  standard_output().finish(patience_s);
  standard_error().important(line);
  standard_error().finish(patience_s);
}

void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // The lowest free number is the one that is closed.
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) return;
  }
}

}  // namespace distca
