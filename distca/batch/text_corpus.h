#pragma once
// Folders of text to a data set: each file is a document, its bytes are the tokens.
//
// Errors: Error(kData) for a path that does not exist and for roots without any text. One thread.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace distca {

struct TextFiles {
  std::vector<std::filesystem::path> paths;  // sorted, each once
  int64_t links = 0;  // skipped: links to folders (they may loop) and links to nothing
};

/// Shell patterns, matched against the last part of a path.
struct TextFilter {
  std::string glob = "*";                 // files taken
  std::vector<std::string> exclude = {};  // files and folders left out, e.g. "site-packages"
};

/// Files of `roots` (files or folders, searched recursively) that pass the filter; a root that is a
/// file is taken as it is. Never one of `made`, the files that the text is turned into: they may
/// lie in the same folder, where a second run would read them as text.
TextFiles find_text_files(const std::vector<std::filesystem::path>& roots, const TextFilter& filter,
                          std::span<const std::filesystem::path> made = {});

struct TextCorpus {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t empty = 0;   // skipped files without a byte
  int64_t binary = 0;  // skipped files with a NUL byte
};

/// Writes prefix.bin and prefix.idx, both or none. `progress` is called after each file with the
/// number done.
TextCorpus write_byte_dataset(const std::vector<std::filesystem::path>& files,
                              const std::filesystem::path& prefix,
                              const std::function<void(int64_t)>& progress);

}  // namespace distca
