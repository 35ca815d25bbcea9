#pragma once
// Turns folders of text into a data set: each file becomes a document, and each of its bytes a
// token.
//
//   const TextFiles files = find_text_files({"docs"}, {.glob = "*.md"});
//   write_byte_dataset(files.paths, "data/docs", [](int64_t) {});
//
// Errors: Error(kData) for a path that does not exist and for roots without any text, Error(kUsage)
// for an input that the output would replace.
// Thread rule: one thread.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace distca {

struct TextFiles {
  std::vector<std::filesystem::path> paths;  // sorted, each file once, whatever links lead to it
  /// Links that were skipped: those to folders, which may loop, and those to nothing.
  int64_t links = 0;
};

/// Shell patterns, which are matched against the last part of a path.
struct TextFilter {
  std::string glob = "*";                 // files that are taken
  std::vector<std::string> exclude = {};  // files and folders left out, e.g. "site-packages"
};

/// Finds the files that pass the filter in `roots`, which are files or folders. Folders are
/// searched recursively; a root that is a file is taken whatever the filter says. Of folders, files
/// in `made` and all files of data sets (with the records and copies of their tokenizers) are left
/// out: what text was turned into may lie in its folder. Throws Error(kUsage) if a root is in
/// `made`.
TextFiles find_text_files(const std::vector<std::filesystem::path>& roots, const TextFilter& filter,
                          std::span<const std::filesystem::path> made = {});

/// Throws Error(kUsage) if an input is one of the files that are `made`.
void check_not_made(const std::filesystem::path& input,
                    std::span<const std::filesystem::path> made);
/// Keeps the first of several paths that lead to one file.
void keep_each_file_once(std::vector<std::filesystem::path>& paths);

struct TextCorpus {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t largest_id = 0;
  int64_t empty = 0;   // files without a byte, which were skipped
  int64_t binary = 0;  // files with a NUL byte, which were skipped
};

/// Writes prefix.bin and prefix.idx, both or none. Calls `progress` after each file with the number
/// of files done.
TextCorpus write_byte_dataset(const std::vector<std::filesystem::path>& files,
                              const std::filesystem::path& prefix,
                              const std::function<void(int64_t)>& progress);

}  // namespace distca
