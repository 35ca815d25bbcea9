#pragma once
// A layout says which ranges of tokens live on which worker. Everything but core attention is
// computed where a token lives, which is called its home. Layouts are plain values, which any
// thread may read.

#include <cstdint>
#include <vector>

#include "distca/base/integers.h"

namespace distca {

/// The planner cuts documents at multiples of this many tokens from their start, and nowhere else
/// (paper 3.3: attention kernels keep their speed on shards of 128 tokens and more). A layout of
/// the caller's own may cut them anywhere.
inline constexpr int64_t kBlockTokens = 128;

/// A range of tokens of one document that lives on one worker.
struct Segment {
  int64_t document = 0;  // Document::id
  Range tokens;          // positions in the document
  auto operator<=>(const Segment&) const = default;
};

struct Layout {
  /// [num_workers] The segments of each worker, in the order in which their tokens lie in the
  /// worker's local tensors.
  std::vector<std::vector<Segment>> workers;

  int num_workers() const { return static_cast<int>(workers.size()); }
  int64_t num_tokens(int worker) const;  // tokens of all its segments
  bool operator==(const Layout&) const = default;
};

}  // namespace distca
