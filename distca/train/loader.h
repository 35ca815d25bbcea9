#pragma once
// A worker's share of a nano-batch as numbers: token ids, targets, positions of its segments. Any
// thread.

#include <cstdint>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/indexed_dataset.h"
#include "distca/batch/layout.h"

namespace distca {

inline constexpr int64_t kNoTarget = -100;  // PyTorch's ignore_index

struct LocalTokens {
  std::vector<int64_t> ids;        // [T]
  std::vector<int64_t> targets;    // [T] next token of the original document, kNoTarget at its end
  std::vector<int64_t> positions;  // [T] offset in the document (of the nano-batch)
};

/// Tokens of `segments`, in their order. Throws Error(kData) for one beyond the vocabulary.
LocalTokens load_tokens(const IndexedDataset& data, const NanoBatchSource& source,
                        const std::vector<Segment>& segments,
                        int64_t vocab_size = IndexedDataset::kAnyVocabulary);

}  // namespace distca
