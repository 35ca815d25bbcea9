#include "distca/batch/text_corpus.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>

#include "distca/base/error.h"
#include "distca/base/file.h"
#include "distca/batch/indexed_dataset.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t{1} << 20;  // bytes

bool matches(const std::string& pattern, const fs::path& path) {
  return fnmatch(pattern.c_str(), path.filename().c_str(), 0) == 0;
}

/// Returns true for PREFIX.bin, PREFIX.idx, PREFIX.json and PREFIX.tokenizer of a data set.
bool is_of_data_set(const fs::path& path) {
  constexpr std::string_view kEndings[] = {".bin", ".idx", ".json", ".tokenizer"};
  const std::string prefix = fs::path(path).replace_extension();
  std::error_code ignored;
  return std::ranges::count(kEndings, path.extension().native()) > 0 &&
         fs::exists(prefix + ".bin", ignored) && fs::exists(prefix + ".idx", ignored);
}

bool is_one_of(const fs::path& path, std::span<const fs::path> made) {
  return std::ranges::any_of(made, [&](const fs::path& file) {
    std::error_code absent;  // equivalent() knows a file however its path is written
    return path.filename() == file.filename() && fs::equivalent(path, file, absent);
  });
}

void find_in_folder(const fs::path& root, const TextFilter& filter, std::span<const fs::path> made,
                    TextFiles& files) {
  const auto excluded = [&](const fs::path& path) {
    return std::ranges::any_of(filter.exclude,
                               [&](const auto& pattern) { return matches(pattern, path); });
  };
  try {
    fs::recursive_directory_iterator entry(root);
    for (; entry != fs::recursive_directory_iterator(); ++entry) {
      if (excluded(entry->path()) || is_one_of(entry->path(), made) ||
          is_of_data_set(entry->path())) {
        entry.disable_recursion_pending();
        continue;
      }
      std::error_code broken;
      const bool is_file = fs::is_regular_file(entry->status(broken));
      if (entry->is_symlink() && !is_file) {
        ++files.links;
      } else if (is_file && matches(filter.glob, entry->path())) {
        files.paths.push_back(entry->path());
      }
    }
  } catch (const fs::filesystem_error& error) {
    const fs::path& path = error.path1().empty() ? root : error.path1();
    throw Error(ErrorKind::kData, "{}: cannot be searched: {}", path.string(),
                error.code().message());
  }
}

}  // namespace

void check_not_made(const fs::path& input, std::span<const fs::path> made) {
  DISTCA_THROW_IF(is_one_of(input, made), ErrorKind::kUsage,
                  "{}: it is read, and would be replaced: choose another --out", input.string());
}

void keep_each_file_once(std::vector<fs::path>& paths) {
  // On some file systems that a network or a virtual machine shares, two files may have one number.
  std::set<std::tuple<dev_t, ino_t, off_t, time_t, decltype(timespec::tv_nsec)>> seen;
  std::erase_if(paths, [&](const fs::path& path) {
    struct stat status {};  // a file that cannot be looked at stays: reading it says why
    return stat(path.c_str(), &status) == 0 &&
           !seen.emplace(status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                         status.st_mtim.tv_nsec)
                .second;
  });
}

TextFiles find_text_files(const std::vector<fs::path>& roots, const TextFilter& filter,
                          std::span<const fs::path> made) {
  TextFiles files;
  for (const fs::path& root : roots) {
    std::error_code absent;
    const fs::file_status status = fs::status(root, absent);
    if (fs::is_directory(status)) {
      find_in_folder(root, filter, made, files);
    } else if (fs::is_regular_file(status)) {
      check_not_made(root, made);
      files.paths.push_back(root);
    } else {
      throw Error(ErrorKind::kData, "{}: no such file or folder of text", root.string());
    }
  }
  std::ranges::sort(files.paths);
  keep_each_file_once(files.paths);
  DISTCA_THROW_IF(files.paths.empty(), ErrorKind::kData,
                  "{}: no file matches \"{}\": expected files of text", roots.front().string(),
                  filter.glob);
  return files;
}

TextCorpus write_byte_dataset(const std::vector<fs::path>& files, const fs::path& prefix,
                              const std::function<void(int64_t)>& progress) {
  TextCorpus corpus;
  IndexedDatasetWriter writer(prefix, TokenType::kUint8);
  std::vector<int32_t> tokens;
  int64_t done = 0;
  for (const fs::path& path : files) {
    const std::string text = read_file(path, ErrorKind::kData);
    if (text.empty()) {
      ++corpus.empty;
    } else if (text.find('\0') != std::string::npos) {
      ++corpus.binary;
    } else {
      // Pieces: a file may have gigabytes, and tokens take four times its bytes.
      for (size_t begin = 0; begin < text.size(); begin += kPiece) {
        const std::string_view piece = std::string_view(text).substr(begin, kPiece);
        tokens.clear();
        for (const char c : piece) tokens.push_back(static_cast<unsigned char>(c));
        writer.append(tokens);
      }
      writer.end_document();
      ++corpus.documents;
      corpus.tokens += static_cast<int64_t>(text.size());
    }
    progress(++done);
  }
  DISTCA_THROW_IF(corpus.documents == 0, ErrorKind::kData,
                  "{}: no text: {} empty and {} binary files, such as compressed ones",
                  files.front().parent_path().string(), corpus.empty, corpus.binary);
  writer.finish();
  corpus.largest_id = writer.largest_id();
  return corpus;
}

}  // namespace distca
