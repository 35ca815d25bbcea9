#pragma once
// Reads a worker's share of a nano-batch from the data set, as token ids, targets and positions.
// Any thread may call load_tokens. Letter: T is the number of the worker's tokens.

#include <cstdint>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/data_blend.h"
#include "distca/batch/layout.h"

namespace distca {

/// In place of a target where a document has no next token.
inline constexpr int64_t kNoTarget = -100;  // PyTorch's ignore_index

/// What a worker's model is given for a nano-batch.
struct LocalTokens {
  std::vector<int64_t> ids;  // [T]
  /// [T] the next token of the original document, or kNoTarget at its end.
  std::vector<int64_t> targets;
  std::vector<int64_t> positions;  // [T] offset in the document of the nano-batch
};

/// Reads the tokens of `segments`, in their order. Throws Error(kData) if a token is not below
/// `vocab_size`.
LocalTokens load_tokens(const DataBlend& data, const NanoBatchSource& source,
                        const std::vector<Segment>& segments,
                        int64_t vocab_size = IndexedDataset::kAnyVocabulary);

}  // namespace distca
