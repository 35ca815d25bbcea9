#include "distca/report/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "distca/base/console.h"
#include "distca/base/file.h"

namespace distca {

MetricsFile::MetricsFile(std::filesystem::path path)
    : path_(std::move(path)),
      descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) throw os_error(path_, "cannot be written");
  size_ = lseek(descriptor_, 0, SEEK_END);
}

MetricsFile::~MetricsFile() { close(descriptor_); }

void MetricsFile::add(std::string line) {
  line += '\n';
  kept_bytes_ += line.size();
  kept_.push_back(std::move(line));
  write_kept();
}

int64_t MetricsFile::finish() {
  write_kept();
  if (fsync(descriptor_) != 0 && errno != EINVAL) {
    standard_error().line(
        fmt::format("warning: {}: lines may be missing: {}", path_.string(), std::strerror(errno)));
  }
  return given_up_ + static_cast<int64_t>(kept_.size());
}

void MetricsFile::write_kept() {
  while (!kept_.empty() && write(kept_.front())) {
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
  }
  if (!kept_.empty() && !std::exchange(warned_, true)) {
    // Not with the "distca: " of a last word: the run goes on.
    standard_error().line(fmt::format(
        "warning: {}: cannot be written: {}: training goes on, what is missing is tried again "
        "after each step",
        path_.string(), std::strerror(errno)));
  }
  for (; kept_bytes_ > kMostKept; ++given_up_) {
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
  }
}

/// The whole line, or nothing and errno.
bool MetricsFile::write(const std::string& line) {
  if (torn_ && ftruncate(descriptor_, size_) != 0) return false;
  torn_ = false;
  ssize_t written = 0;
  do {
    written = ::write(descriptor_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) {
    size_ += written;
    return true;
  }
  if (written < 0) return false;
  torn_ = written > 0 && ftruncate(descriptor_, size_) != 0;
  errno = ENOSPC;  // a short write has none; nearly always it is this
  return false;
}

}  // namespace distca
