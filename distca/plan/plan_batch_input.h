#pragma once
// Nano-batches from files: what `distca plan` and bench/plan read. Errors: Error(kData), one line
// that names the file and what is wrong in it. Any thread.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "distca/batch/document.h"

namespace distca {

/// {"ranks": 8, "tokens_per_rank": 131072, "source": "pretrain", "doc_lens": [25696, ...]}: one
/// nano-batch.
struct Workload {
  int ranks = 1;
  int64_t tokens_per_rank = 0;
  std::string source;
  NanoBatch nano_batch;
};

/// The documents must fill exactly ranks x tokens_per_rank tokens.
Workload read_workload(const std::filesystem::path& path);

/// A JSON list of document lengths in tokens, each at least 1; may be empty.
std::vector<int64_t> read_lengths(const std::filesystem::path& path);

}  // namespace distca
