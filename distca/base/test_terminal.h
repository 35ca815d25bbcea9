#pragma once
// A terminal for tests: what a program wrote to it, and what a person would see. It can be paused,
// as Ctrl-S does.

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace distca {

class TestTerminal {
 public:
  explicit TestTerminal(unsigned short columns = 80) : ours_(posix_openpt(O_RDWR | O_NOCTTY)) {
    if (ours_ < 0 || grantpt(ours_) != 0 || unlockpt(ours_) != 0) {
      throw std::runtime_error("no pseudo terminal");
    }
    theirs_ = open(ptsname(ours_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    const winsize size{.ws_row = 24, .ws_col = columns};
    ioctl(theirs_, TIOCSWINSZ, &size);
    reader_ = std::thread([this] { read_all(); });
  }
  ~TestTerminal() {
    stop_ = true;
    reader_.join();
    close(ours_);
    close(theirs_);
  }

  /// The descriptor that a program writes to.
  int fd() const { return theirs_; }
  void pause() { tcflow(theirs_, TCOOFF); }
  void resume() { tcflow(theirs_, TCOON); }

  /// All that a program has written by now.
  std::string written() {
    std::lock_guard lock(mutex_);
    while (read_some()) continue;
    return written_;
  }
  /// Lines as they stand in the end; a terminal of endless width.
  std::vector<std::string> screen() {
    std::vector<std::string> lines(1);
    size_t column = 0;
    const std::string text = written();
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r') {
        column = 0;
      } else if (text[i] == '\n') {
        lines.emplace_back();
      } else if (text.compare(i, 3, "\033[K") == 0) {
        lines.back().resize(column);
        i += 2;
      } else {
        if (lines.back().size() <= column) lines.back().resize(column + 1, ' ');
        lines.back()[column++] = text[i];
      }
    }
    return lines;
  }

 private:
  void read_all() {
    while (!stop_) {
      pollfd polled{.fd = ours_, .events = POLLIN, .revents = 0};
      poll(&polled, 1, 10);
      std::lock_guard lock(mutex_);
      read_some();
    }
  }
  /// Called under the mutex. Returns true if there was something to read.
  bool read_some() {
    pollfd polled{.fd = ours_, .events = POLLIN, .revents = 0};
    if (poll(&polled, 1, 0) != 1) return false;
    char buffer[4096];
    const ssize_t got = read(ours_, buffer, sizeof(buffer));
    if (got > 0) written_.append(buffer, static_cast<size_t>(got));
    return got > 0;
  }

  const int ours_;
  int theirs_ = -1;
  std::mutex mutex_;
  std::string written_;
  std::atomic<bool> stop_ = false;
  std::thread reader_;
};

}  // namespace distca
