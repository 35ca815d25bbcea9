#include "distca/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "distca/base/clock.h"
#include "distca/base/text.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

/// A descriptor of a regular file, and its size.
struct OpenFile {
  OpenFile(const fs::path& path, ErrorKind kind)
      : descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor.get() < 0) throw os_error(path, "cannot be read", kind);
    struct stat status {};
    const bool known = fstat(descriptor.get(), &status) == 0;
    DISTCA_THROW_IF(!known || !S_ISREG(status.st_mode), kind,
                    "{}: cannot be read: not a regular file", path.string());
    size = static_cast<size_t>(status.st_size);
  }

  FileDescriptor descriptor;
  size_t size = 0;
};

/// Returns the descriptor of ours that a path like /dev/fd/3 names, or -1 if it names none.
int own_descriptor(const fs::path& path) {
  std::error_code code;
  const fs::path folder = fs::canonical(path.parent_path(), code);
  if (code || folder != fmt::format("/proc/{}/fd", getpid())) return -1;
  return to_number<int>(path.filename().string()).value_or(-1);
}

/// Where a path leads, whether something is there or not; a descriptor of ours is not followed.
/// Empty where links lead in a circle.
fs::path follow_links(fs::path path) {
  constexpr int kMostLinks = 40;  // the limit of the kernel
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code code;
    if (!fs::is_symlink(fs::symlink_status(path, code)) || own_descriptor(path) >= 0) return path;
    const fs::path next = fs::read_symlink(path, code);
    if (code) return path;
    path = path.parent_path() / next;  // an absolute `next` stands alone
  }
  return {};
}

/// Reads from `offset` on until `out` is full or the file ends. Returns the bytes that it has read.
size_t read_from(const FileDescriptor& file, int64_t offset, std::span<std::byte> out,
                 const fs::path& path, ErrorKind kind) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t bytes = pread(file.get(), out.data() + done, out.size() - done,
                                offset + static_cast<int64_t>(done));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) throw os_error(path, "cannot be read", kind);
    if (bytes == 0) break;
    done += static_cast<size_t>(bytes);
  }
  return done;
}

/// Makes a file for writing whose name must be new: whoever may write in its folder may have put a
/// link there. One that a killed process of the same id has left makes room. Below 0: errno.
int open_new(const fs::path& path) {
  constexpr int kFlags = O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC;
  const int descriptor = open(path.c_str(), kFlags, 0666);
  if (descriptor >= 0 || errno != EEXIST) return descriptor;
  unlink(path.c_str());
  return open(path.c_str(), kFlags, 0666);
}

}  // namespace

Error os_error(const fs::path& path, std::string_view what, ErrorKind kind) {
  return Error(kind, "{}: {}: {}", path.string(), what, std::strerror(errno));
}

bool create_folder(const fs::path& folder) {
  std::error_code code;
  const bool made = fs::create_directories(folder, code);
  DISTCA_THROW_IF(code, ErrorKind::kIo, "{}: cannot create this folder: {}", folder.string(),
                  code.message());
  return made;
}

MissingFolders::MissingFolders(const fs::path& path) {
  std::error_code ignored;
  for (fs::path at = fs::absolute(path).lexically_normal();
       at.has_relative_path() && !fs::exists(fs::symlink_status(at, ignored));
       at = at.parent_path())
    innermost_first_.push_back(at);
}

MissingFolders::~MissingFolders() {
  std::error_code ignored;
  for (const fs::path& folder : innermost_first_) fs::remove(folder, ignored);
}

bool appears(const fs::path& path, double seconds) {
  const Stopwatch watch;
  std::error_code ignored;
  const fs::path whole = fs::absolute(path, ignored);
  while (true) {
    fs::path folder;
    for (const fs::path& part : whole.parent_path()) {
      folder /= part;
      fs::directory_iterator(folder, ignored);  // opens it and reads its first names
    }
    if (fs::exists(whole, ignored)) return true;
    if (watch.seconds() >= seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

void make_new_file(const fs::path& path) {
  const FileDescriptor file(open_new(path));
  if (file.get() < 0) throw os_error(path, "cannot be written");
}

std::string read_file(const fs::path& path, ErrorKind kind) {
  const OpenFile file(path, kind);
  std::string contents(file.size, '\0');
  const auto bytes = std::as_writable_bytes(std::span(contents));
  contents.resize(read_from(file.descriptor, 0, bytes, path, kind));  // it may shrink meanwhile
  return contents;
}

void write_file_atomically(const fs::path& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

FileDescriptor::~FileDescriptor() {
  if (value_ >= 0) close(value_);
}

MappedFile::MappedFile(const fs::path& path, ErrorKind kind) {
  const OpenFile file(path, kind);
  if (file.size == 0) return;  // mmap refuses empty ranges
  void* data = mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.descriptor.get(), 0);
  if (data == MAP_FAILED) throw os_error(path, "cannot be mapped", kind);
  size_ = file.size;
  data_ = {static_cast<const std::byte*>(data),
           [data, size = size_](const std::byte*) { munmap(data, size); }};
}

PiecewiseFile::PiecewiseFile(fs::path path, ErrorKind kind) : path_(std::move(path)), kind_(kind) {
  OpenFile file(path_, kind);
  descriptor_ = std::move(file.descriptor);
  size_ = static_cast<int64_t>(file.size);
}

void PiecewiseFile::read(int64_t offset, std::span<std::byte> out) const {
  DISTCA_THROW_IF(read_from(descriptor_, offset, out, path_, kind_) < out.size(), kind_,
                  "{}: cut while it is in use: it had {} bytes and ends before byte {} now",
                  path_.string(), size_, offset + static_cast<int64_t>(out.size()));
}

const std::byte* FileWindow::at(int64_t offset, int64_t bytes) {
  if (offset < begin_ || offset + bytes > begin_ + static_cast<int64_t>(held_.size())) {
    const int64_t end = begin_ + static_cast<int64_t>(held_.size());
    const int64_t ahead = begin_ <= offset && offset <= end ? least_ : 0;
    std::vector<std::byte> fresh(
        static_cast<size_t>(std::max(bytes, std::min(ahead, file_.size() - offset))));
    file_.read(offset, fresh);
    begin_ = offset;
    held_ = std::move(fresh);
  }
  return held_.data() + (offset - begin_);
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  const fs::path target = follow_links(path_);
  DISTCA_THROW_IF(target.empty(), ErrorKind::kIo, "{}: cannot be written: {}", path_.string(),
                  std::strerror(ELOOP));
  struct stat old {};
  const bool exists = stat(path_.c_str(), &old) == 0;
  DISTCA_THROW_IF(exists && S_ISDIR(old.st_mode), ErrorKind::kIo,
                  "{}: cannot be written: it is a folder", path_.string());
  // Through a link of another process's descriptor, the name may be another file's by now, or none.
  std::error_code absent;
  const bool same = fs::equivalent(path_, target, absent);
  const int own = own_descriptor(target);
  if (own < 0 && (!exists || (S_ISREG(old.st_mode) && same))) {
    if (exists && faccessat(AT_FDCWD, target.c_str(), W_OK, AT_EACCESS) != 0)
      throw os_error(path_, "cannot be written");
    open_beside(target);
    if (!exists) return;
    const int descriptor = fileno(stream_);
    const bool same_owner = fchown(descriptor, old.st_uid, old.st_gid) == 0;
    fchmod(descriptor, old.st_mode & (same_owner ? 07777 : 0777));
    return;
  }
  const int descriptor = own >= 0 ? fcntl(own, F_DUPFD_CLOEXEC, 0)
                                  : open(path_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (descriptor >= 0) stream_ = fdopen(descriptor, "wb");
  if (stream_ == nullptr) throw os_error(path_, "cannot be written");
}

void AtomicFile::open_beside(const fs::path& target) {
  target_ = target;
  if (target_.has_parent_path()) create_folder(target_.parent_path());
  const fs::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
  // The process id keeps two programs that write the same file apart.
  temporary_ = folder / fmt::format(".{}.{}.tmp", target_.filename().string(), getpid());
  // A file without a name vanishes with the process, however that ends.
  int descriptor = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor < 0) {  // not every file system has them
    descriptor = open_new(temporary_);
    named_ = descriptor >= 0;
  }
  if (descriptor >= 0) stream_ = fdopen(descriptor, "wb");
  if (stream_ == nullptr) throw os_error(path_, "cannot be written");
}

AtomicFile::~AtomicFile() {
  if (stream_ == nullptr) return;
  std::fclose(stream_);
  if (named_) unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // fwrite takes no null pointer, not even for nothing
  if (std::fwrite(bytes.data(), 1, bytes.size(), stream_) != bytes.size())
    throw os_error(path_, "cannot be written");
}

void AtomicFile::reserve(int64_t bytes) {
  if (target_.empty() || bytes <= 0) return;
  const int descriptor = fileno(stream_);
  int error = 0;
  do {
    error = fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  struct statvfs space {};
  int64_t free = -1;  // unknown
  if (fstatvfs(descriptor, &space) == 0) {
    free = static_cast<int64_t>(space.f_frsize * (geteuid() == 0 ? space.f_bfree : space.f_bavail));
  }
  if (error == EOPNOTSUPP || error == ENOSYS) error = free >= 0 && free < bytes ? ENOSPC : 0;
  if (error == 0) return;
  throw Error(ErrorKind::kIo, "{}: cannot be written: {}: {} are needed{}", path_.string(),
              std::strerror(error), human_bytes(bytes),
              free < 0 ? "" : fmt::format(", {} are free", human_bytes(free)));
}

void AtomicFile::sync() {
  if (std::fflush(stream_) != 0 || (!target_.empty() && fsync(fileno(stream_)) != 0))
    throw os_error(path_, "cannot be written");
}

void AtomicFile::commit_as(const fs::path& place) {
  if (target_.empty()) {
    std::fflush(stdout);  // earlier output comes first if this is /dev/stdout
    sync();
    std::fclose(std::exchange(stream_, nullptr));
    return;
  }
  sync();
  if (!named_) {
    unlink(temporary_.c_str());  // a killed process with the same id may have left one
    const std::string open_file = fmt::format("/proc/self/fd/{}", fileno(stream_));
    named_ =
        linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) == 0;
  }
  if (!named_ || rename(temporary_.c_str(), place.c_str()) != 0)
    throw os_error(path_, "cannot be put in place");
  std::fclose(std::exchange(stream_, nullptr));
  sync_folder(place.parent_path());
}

void sync_folder(const fs::path& folder) {
  const FileDescriptor descriptor(
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() >= 0) fsync(descriptor.get());
}

}  // namespace distca
