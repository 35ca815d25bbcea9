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

#include "distca/base/error.h"

namespace distca {

std::string read_file(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kIo);
/// Creates the folder where `path` lies, if need be, and writes as AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

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
class AtomicFile {
 public:
  /// Creates the folder where `path` lies, if need be.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  bool named_ = false;  // temporary_ exists
  std::FILE* stream_ = nullptr;
};

}  // namespace distca
