#pragma once
// Helpers that fuzz targets share: a check of how a reader refuses, and a folder for its files.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "distca/base/error.h"

namespace distca::fuzz {

/// Returns what `read` returns, or nothing if it refuses its input as bad, in one short line.
/// Other exceptions go on.
template <typename Read>
auto unless_refused(const Read& read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const Error& error) {
    const std::string line = error.what();
    const bool is_line =
        std::ranges::none_of(line, [](unsigned char c) { return c < ' ' || c == 0x7f; });
    DISTCA_CHECK(error.exit_code() == 2, "not called bad input: {}", line);
    DISTCA_CHECK(is_line && !line.empty() && line.size() <= Error::kMostBytes,
                 "{} bytes are no message: {}", line.size(), line);
    return std::nullopt;
  }
}

inline std::string_view as_text(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A folder of this process for files of its inputs. It is removed when the process ends.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() / fmt::format("distca_fuzz_{}", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;  // it is a temporary one
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  /// Replaces a file of the folder and returns its path.
  std::filesystem::path write(std::string_view name, std::string_view contents) const {
    std::ofstream file(path_ / name, std::ios::binary | std::ios::trunc);
    file.write(contents.data(), static_cast<std::streamsize>(contents.size())).flush();
    DISTCA_CHECK(file.good(), "{} cannot be written", (path_ / name).string());
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

/// The folder of this process.
inline const Folder& folder() {
  static const Folder folder;
  return folder;
}

}  // namespace distca::fuzz
