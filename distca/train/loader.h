#pragma once
// Reads a worker's share of a nano-batch from the data set, as token ids, targets and positions.
// Any thread may call load_tokens. Letter: T is the number of the worker's tokens.

#include <cstdint>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/batch/data_blend.h"
#include "distca/batch/layout.h"

namespace distca {

struct Config;

/// In place of a target where a document has no next token.
inline constexpr int64_t kNoTarget = -100;  // PyTorch's ignore_index

/// The input of a worker's model for a nano-batch.
struct LocalTokens {
  std::vector<int64_t> ids;  // [T]
  /// [T] the next token of the original document, or kNoTarget at its end, and where
  /// data.bad_tokens leaves it out.
  std::vector<int64_t> targets;
  std::vector<int64_t> positions;  // [T] offset in the document of the nano-batch
  int64_t bad_tokens = 0;          // how many of the T have ids that the model does not have
  int64_t targets_left_out = 0;    // targets that are left out for that reason
};

/// Reads the tokens of `segments`, in their order, and does with those that the model does not have
/// what data.bad_tokens says. Throws Error(kData) if that is to refuse them.
LocalTokens load_tokens(const Config& config, const DataBlend& data, const NanoBatchSource& source,
                        const std::vector<Segment>& segments);

}  // namespace distca
