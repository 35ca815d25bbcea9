#pragma once
// Reads nano-batches from files, for `distca plan` and bench/plan. Errors: Error(kData), in one
// line that names the file and what is wrong in it. Any thread may call the functions.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "distca/batch/document.h"

namespace distca {

/// One nano-batch. In a file it is
///   {"ranks": 8, "tokens_per_rank": 131072, "source": "pretrain", "doc_lens": [25696, ...]}
struct Workload {
  int ranks = 1;
  NanoBatch nano_batch;
};

/// The documents must fill exactly ranks x tokens_per_rank tokens. "source" says where the lengths
/// are from; it may be absent.
Workload read_workload(const std::filesystem::path& path);

/// Reads a JSON list of document lengths in tokens. Each is at least 1; the list may be empty.
std::vector<int64_t> read_lengths(const std::filesystem::path& path);

}  // namespace distca
