#pragma once
// Files that are read whole, mapped into memory, or written so that a reader sees either the whole
// file or nothing.
//
//     const std::string text = read_file("plan.json", ErrorKind::kPlan);
//     AtomicFile file("weights.bin");
//     file.write(bytes);
//     file.commit();  // "weights.bin" appears, or replaces an older one
//
// Errors name the path and the reason. For a file that cannot be read, the caller chooses the kind,
// because a missing configuration, for example, is bad input. For a file that cannot be written,
// the kind is kIo. Thread rule: one thread at a time uses an object.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distca/base/error.h"

namespace distca {

/// An error "PATH: WHAT: REASON" for a call that the system has just refused. The reason is that of
/// errno.
Error os_error(const std::filesystem::path& path, std::string_view what,
               ErrorKind kind = ErrorKind::kIo);

/// Makes a folder and all folders above it. Returns whether it was made. Throws Error(kIo).
bool create_folder(const std::filesystem::path& folder);

/// The folders on the way to a path that are not there when this is made. What is empty of them
/// when it is destroyed is removed: after a failure, the file system is as it was.
class MissingFolders {
 public:
  explicit MissingFolders(const std::filesystem::path& path);
  ~MissingFolders();
  MissingFolders(const MissingFolders&) = delete;
  MissingFolders& operator=(const MissingFolders&) = delete;

 private:
  std::vector<std::filesystem::path> innermost_first_;
};

/// Returns true if something is at `path`, which another machine may just have made. If nothing is
/// there, looks again for up to `seconds`. A network file system's client believes for a while that
/// what was not there is not there; opening the folders above makes it ask the server again.
bool appears(const std::filesystem::path& path, double seconds);

/// Makes an empty file under a name that must be new: what is there, such as a link that somebody
/// else has planted, is removed and not followed. Throws Error(kIo).
void make_new_file(const std::filesystem::path& path);

/// Returns the contents of a file.
std::string read_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kIo);
/// Writes a file as AtomicFile does. Creates the folder of `path` if it does not exist.
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

/// Owns a file descriptor of the system and closes it in the end. A value below 0 means no file.
class FileDescriptor {
 public:
  explicit FileDescriptor(int value = -1) : value_(value) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  int get() const { return value_; }
  /// The descriptor, which the caller closes from now on.
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

/// Maps a whole file into memory, for reading only. The system loads its pages when they are
/// touched. Any thread may read the bytes.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kIo);
  MappedFile(MappedFile&&) noexcept = default;  // no copies: who reads keeps pointers into it

  /// Empty of one that was moved away.
  std::span<const std::byte> bytes() const { return {data_.get(), data_ ? size_ : 0}; }
  int64_t size() const { return static_cast<int64_t>(bytes().size()); }

 private:
  std::shared_ptr<const std::byte> data_;  // the mapping
  size_t size_ = 0;
};

/// A file of which pieces are read, at any place and by any thread. Unlike a mapped one, a file
/// that is cut or cannot be read any more is an error and not the end of the process.
class PiecewiseFile {
 public:
  explicit PiecewiseFile(std::filesystem::path path, ErrorKind kind = ErrorKind::kIo);

  int64_t size() const { return size_; }  // bytes, when it was opened
  /// Fills `out` with the bytes from `offset` on. Throws Error if the file does not have them.
  void read(int64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  ErrorKind kind_;
  FileDescriptor descriptor_;
  int64_t size_ = 0;
};

/// A part of a file in memory. A read that follows the last one takes at least `least` bytes at
/// once, as far as the file goes; another takes what it is asked for. One thread.
class FileWindow {
 public:
  explicit FileWindow(const PiecewiseFile& file, int64_t least = 0) : file_(file), least_(least) {}
  /// The bytes from `offset` on, which stay until the next call. Throws Error.
  const std::byte* at(int64_t offset, int64_t bytes);

 private:
  const PiecewiseFile& file_;
  const int64_t least_;
  int64_t begin_ = 0;
  std::vector<std::byte> held_;
};

/// A file that appears whole at its final place when commit() is called, after it was synced to
/// disk. Before that, it has no name or, where the file system needs one, a temporary name next
/// to the final place. If it is destroyed before commit(), nothing is left. If the process is
/// killed, the temporary file may be left.
///
/// As with cp, a link is followed, even one to a place where nothing is yet. An older file's owner
/// and permissions are kept, but its other hard links keep the old contents. A folder is refused.
/// If `path` is not a regular file but a device, a pipe or /dev/stdout, it is written into at once,
/// so nothing is atomic there, and opening a named pipe waits for its reader.
class AtomicFile {
 public:
  /// Creates the folder of `path` if it does not exist.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// The file that commit() makes or replaces, after all links were followed. Empty if `path` is
  /// not a regular file.
  const std::filesystem::path& target() const { return target_; }
  /// Takes disk space for a file of `bytes` bytes in total, so that later writes cannot find the
  /// disk full. If the file system cannot reserve space, checks only that so much is free. Throws
  /// Error(kIo) with both numbers.
  void reserve(int64_t bytes);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Brings what was written to disk, so that commit() takes no time.
  void sync();
  void commit() { commit_as(target_); }
  /// Like commit(), but puts the file at `place`, which must be in the folder of target().
  void commit_as(const std::filesystem::path& place);

 private:
  void open_beside(const std::filesystem::path& target);

  std::filesystem::path path_;  // for error messages
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool named_ = false;  // true if temporary_ exists
  std::FILE* stream_ = nullptr;
};

/// Syncs a folder to disk, so that a rename in it survives a power failure. Does nothing on a file
/// system that cannot sync folders.
void sync_folder(const std::filesystem::path& folder);

}  // namespace distca
