#pragma once
// A mask by position, cut into rectangles that need no mask of their own: what lets a kernel that
// knows only "full" and "causal" compute any task. Positions count from the document's start.
// Thread rule: pure functions.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/base/integers.h"
#include "distca/kernels/attention.h"

namespace distca::kernels {

/// The keys of `keys` that the query at position `query` may see.
Range visible_keys(const Mask& mask, int64_t query, const Range& keys);

enum class MaskPartKind {
  kFull,     // every query sees every key
  kCausal,   // as many queries as keys, query number i sees keys number 0..i
  kPartial,  // anything: ask the mask
};

struct MaskPart {
  Range queries;
  Range keys;
  size_t range = 0;  // index of the range that holds `keys`
  MaskPartKind kind = MaskPartKind::kFull;
};

/// Cuts queries x keys into blocks that hold every visible pair exactly once, in order of
/// queries, then ranges. Only a left window yields kPartial; queries are then cut by
/// `window_queries`, so that few pairs lie in such blocks.
std::vector<MaskPart> cut_mask(const Mask& mask, const Range& queries,
                               std::span<const KeyRange> ranges, int64_t window_queries);

}  // namespace distca::kernels
