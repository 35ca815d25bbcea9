#include "distca/report/run_follower.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "distca/base/error.h"
#include "distca/base/file.h"

namespace distca {
namespace {

constexpr size_t kAtOnce = 1 << 20;  // bytes

/// Up to so many bytes from `offset` on: fewer at the end of the file.
std::string bytes_at(const std::filesystem::path& path, int file, int64_t offset, size_t bytes) {
  std::string text(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        pread(file, text.data() + done, bytes - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw os_error(path, "cannot be read");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

}  // namespace

RunFollower::RunFollower(const std::filesystem::path& folder) : path_(folder / "metrics.jsonl") {
  std::error_code ignored;
  DISTCA_THROW_IF(!std::filesystem::is_regular_file(path_, ignored), ErrorKind::kUsage,
                  "{}: not the folder of a run: it has no metrics.jsonl", folder.string());
}

RunFollower::News RunFollower::read() {
  const FileDescriptor file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw os_error(path_, "cannot be read");
  News news;
  // Lines have the time at which they were made, so no two are alike.
  const auto before = offset_ - static_cast<int64_t>(last_.size());
  if (bytes_at(path_, file.get(), before, last_.size()) != last_) {
    news.from_start = true;
    offset_ = line_number_ = 0;
    last_.clear();
  }
  std::string text;
  size_t end = std::string::npos;
  for (size_t bytes = kAtOnce; end == std::string::npos; bytes *= 2) {
    text = bytes_at(path_, file.get(), offset_, bytes);
    end = text.rfind('\n');
    if (text.size() < bytes) break;
  }
  if (end == std::string::npos) return news;
  for (size_t begin = 0; begin <= end;) {
    const size_t stop = text.find('\n', begin);
    news.lines.push_back(text.substr(begin, stop - begin));
    begin = stop + 1;
  }
  offset_ += static_cast<int64_t>(end) + 1;
  line_number_ += std::ssize(news.lines);
  last_ = news.lines.back() + "\n";
  return news;
}

bool RunFollower::is_written() const {
  // Rank 0 holds a lock while it runs (run_folder.h). This one is given back at once.
  const FileDescriptor file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  return file.get() >= 0 && flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace distca
