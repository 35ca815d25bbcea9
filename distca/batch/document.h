#pragma once
// Documents and the nano-batch: what a plan is made for. Plain values, any thread.

#include <cstdint>
#include <vector>

namespace distca {

/// Of a nano-batch: its pairs stay below 2^60.
inline constexpr int64_t kMostTokens = int64_t{1} << 30;

/// A run of tokens that attend only to each other; position = offset in the document.
struct Document {
  int64_t id = 0;      // index in its nano-batch
  int64_t length = 0;  // tokens
  bool operator==(const Document&) const = default;
};

/// The documents that pass a layer together, over all workers.
struct NanoBatch {
  std::vector<Document> documents;

  /// ids 0, 1, ... in the order of `lengths` (tokens).
  static NanoBatch from_lengths(const std::vector<int64_t>& lengths);

  int64_t num_tokens() const;
  /// [num_documents + 1] offsets of the documents laid end to end.
  std::vector<int64_t> cu_seqlens() const;
  bool operator==(const NanoBatch&) const = default;
};

}  // namespace distca
