#pragma once
// Files: read whole, memory-mapped, or written so that a reader sees all of it or nothing.
//
// Errors name the path and the reason: of the kind the caller gives for a file that cannot be read
// (a missing configuration is bad input), kIo for one that cannot be written. Objects belong to one
// thread at a time.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "distca/base/error.h"

namespace distca {

std::string read_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kIo);
/// Creates the folder where `path` lies, if need be, and writes as AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

/// An open file of the system's, closed at the end; below 0: none.
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

 private:
  int value_;
};

/// A whole file as read-only memory; pages are loaded when touched. Reading it is safe from any
/// thread.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kIo);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int64_t size() const { return static_cast<int64_t>(size_); }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// A file that commit() syncs and puts in its final place, whole. Until then it has no name, or a
/// temporary one beside its final place where the file system allows no file without. Destroyed
/// before commit(), it leaves nothing; killed, it may leave the temporary one.
///
/// As with cp, a link is followed, to a place where nothing is yet, too; an older file's
/// permissions and owner are kept (its further hard links are not); and what is no file, a device,
/// a pipe, /dev/stdout, is written into at once: there, nothing is atomic, and opening a named pipe
/// waits for its reader. A folder is refused.
class AtomicFile {
 public:
  /// Creates the folder where `path` lies, if need be.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// The file that commit() makes or replaces, behind all links; empty: what is written into is no
  /// file.
  const std::filesystem::path& target() const { return target_; }
  /// Takes the space of `bytes` in all now, so that writing them cannot find the disk full; where
  /// the file system cannot, checks that they are free. Throws Error(kIo) with both numbers.
  void reserve(int64_t bytes);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit() { commit_as(target_); }
  /// Puts the whole file at `place`, in the target's folder, instead.
  void commit_as(const std::filesystem::path& place);

 private:
  void open_beside(const std::filesystem::path& target);
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;  // as errors name it
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool named_ = false;  // temporary_ exists
  std::FILE* stream_ = nullptr;
};

/// Makes what was renamed in `folder` outlive a power failure; a file system that cannot is left
/// alone.
void sync_folder(const std::filesystem::path& folder);

}  // namespace distca
