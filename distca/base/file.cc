#include "distca/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace distca {
namespace {

namespace fs = std::filesystem;

/// A descriptor of a regular file, and its size.
struct OpenFile {
  OpenFile(const fs::path& path, ErrorKind kind)
      : descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor < 0)
      throw Error(kind, "{}: cannot be read: {}", path.string(), std::strerror(errno));
    struct stat status {};
    const bool known = fstat(descriptor, &status) == 0;
    if (!known || !S_ISREG(status.st_mode)) {
      close(descriptor);
      throw Error(kind, "{}: cannot be read: not a regular file", path.string());
    }
    size = static_cast<size_t>(status.st_size);
  }
  ~OpenFile() { close(descriptor); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor;
  size_t size = 0;
};

void create_parent(const fs::path& path) {
  if (!path.has_parent_path()) return;
  std::error_code code;
  fs::create_directories(path.parent_path(), code);
  if (code) {
    throw Error(ErrorKind::kIo, "{}: cannot create this folder: {}", path.parent_path().string(),
                code.message());
  }
}

/// Makes a rename in `folder` outlive a power failure; a file system that cannot is left alone.
void sync_folder(const fs::path& folder) {
  const int descriptor =
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

}  // namespace

std::string read_file(const fs::path& path, ErrorKind kind) {
  const OpenFile file(path, kind);
  std::string contents(file.size, '\0');
  size_t done = 0;
  while (done < contents.size()) {
    const ssize_t bytes = read(file.descriptor, contents.data() + done, contents.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) throw Error(kind, "{}: cannot be read: {}", path.string(), std::strerror(errno));
    if (bytes == 0) break;  // it shrank meanwhile
    done += static_cast<size_t>(bytes);
  }
  contents.resize(done);
  return contents;
}

void write_file_atomically(const fs::path& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

MappedFile::MappedFile(const fs::path& path, ErrorKind kind) {
  const OpenFile file(path, kind);
  if (file.size == 0) return;  // mmap refuses empty ranges
  void* data = mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
  if (data == MAP_FAILED) {
    throw Error(kind, "{}: cannot be mapped: {}", path.string(), std::strerror(errno));
  }
  data_ = static_cast<const std::byte*>(data);
  size_ = file.size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  create_parent(path_);
  const fs::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  // The process id keeps two programs that write the same file apart.
  temporary_ = folder / fmt::format(".{}.{}.tmp", path_.filename().string(), getpid());
  // A file without a name vanishes with the process, however that ends.
  int descriptor = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor < 0) {  // not every file system has them
    named_ = true;
    descriptor = open(temporary_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
  }
  if (descriptor >= 0) stream_ = fdopen(descriptor, "wb");
  if (stream_ == nullptr) fail("cannot be written");
}

AtomicFile::~AtomicFile() {
  if (stream_ == nullptr) return;
  std::fclose(stream_);
  if (named_) unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // fwrite takes no null pointer, not even for nothing
  if (std::fwrite(bytes.data(), 1, bytes.size(), stream_) != bytes.size())
    fail("cannot be written");
}

void AtomicFile::commit() {
  if (std::fflush(stream_) != 0 || fsync(fileno(stream_)) != 0) fail("cannot be written");
  if (!named_) {
    unlink(temporary_.c_str());  // of a killed process that had the same id
    const std::string open_file = fmt::format("/proc/self/fd/{}", fileno(stream_));
    named_ =
        linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) == 0;
  }
  if (!named_ || rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be put in place");
  std::fclose(std::exchange(stream_, nullptr));
  sync_folder(path_.parent_path());
}

void AtomicFile::fail(const char* what) const {
  throw Error(ErrorKind::kIo, "{}: {}: {}", path_.string(), what, std::strerror(errno));
}

}  // namespace distca
