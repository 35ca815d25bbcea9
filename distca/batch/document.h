#pragma once
// Documents, and the nano-batch that they form. A nano-batch is what one plan is made for.
//
//   const NanoBatch nano_batch = NanoBatch::from_lengths({6000, 500, 1692});
//   const int64_t tokens = nano_batch.num_tokens();  // 8192
//
// Both types are plain values, which any thread may read.

#include <cstdint>
#include <vector>

namespace distca {

/// The most tokens that a nano-batch may have. The number of its (query, key) pairs is then below
/// 2^60.
inline constexpr int64_t kMostTokens = int64_t{1} << 30;

/// A run of tokens that attend only to each other. The position of a token is its offset in the
/// document, from 0.
struct Document {
  int64_t id = 0;      // index in its nano-batch, from 0
  int64_t length = 0;  // tokens
  bool operator==(const Document&) const = default;
};

/// The documents that pass through a layer together, on all workers.
struct NanoBatch {
  std::vector<Document> documents;

  /// Makes documents of these lengths (in tokens). Their ids are 0, 1, ... in the order of
  /// `lengths`.
  static NanoBatch from_lengths(const std::vector<int64_t>& lengths);

  int64_t num_tokens() const;
  /// [num_documents + 1] The offsets at which the documents begin when they are laid end to end,
  /// and the end of the last one.
  std::vector<int64_t> cu_seqlens() const;
  bool operator==(const NanoBatch&) const = default;
};

}  // namespace distca
