#pragma once
// Cuts a mask by position into rectangles that need no mask of their own. So a kernel that knows
// only "full" and "causal" can compute any task. Positions count from the document's start. Thread
// rule: pure functions.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/base/integers.h"
#include "distca/kernels/attention.h"

namespace distca::kernels {

/// Beyond any position, and far enough from the limits that sums of three of them do not overflow.
inline constexpr int64_t kUnlimited = int64_t{1} << 60;

/// Query i sees keys [i - left, i + right].
struct Reach {
  int64_t left = kUnlimited;
  int64_t right = kUnlimited;
};
Reach reach_of(const Mask& mask);

/// The keys of `keys` that the query at position `query` sees.
Range visible_keys(const Mask& mask, int64_t query, const Range& keys);

/// The shape of the mask inside a part.
enum class MaskPartKind {
  kFull,     // every query sees every key
  kCausal,   // there are as many queries as keys, and query number i sees keys number 0..i
  kPartial,  // neither: the mask decides for each pair
};

/// A rectangle of positions.
struct MaskPart {
  Range queries;
  Range keys;
  size_t range = 0;  // index of the range that holds `keys`
  MaskPartKind kind = MaskPartKind::kFull;
};

/// Cuts queries x keys into parts, in the order of queries, then ranges. Every visible pair is in
/// exactly one part. Only a left window yields kPartial; for such a mask, queries are cut into
/// pieces of `window_queries`, so that few pairs lie in partial parts.
std::vector<MaskPart> cut_mask(const Mask& mask, const Range& queries,
                               std::span<const KeyRange> ranges, int64_t window_queries);

}  // namespace distca::kernels
