#pragma once
// Layout: which token ranges live on which worker, where everything but core attention is computed.
// Plain values, any thread.

#include <cstdint>
#include <vector>

#include "distca/base/integers.h"

namespace distca {

/// Cuts are multiples of this many tokens from the document's start, or the document's end
/// (paper 3.3: attention kernels keep their speed on shards of 128 and more).
inline constexpr int64_t kBlockTokens = 128;

/// One token range of a document in a layout.
struct Segment {
  int64_t document = 0;  // Document::id
  Range tokens;          // positions in the document
  auto operator<=>(const Segment&) const = default;
};

struct Layout {
  /// [num_workers], each in the order in which the tokens lie in the worker's local tensors.
  std::vector<std::vector<Segment>> workers;

  int num_workers() const { return static_cast<int>(workers.size()); }
  int64_t num_tokens(int worker) const;
  bool operator==(const Layout&) const = default;
};

}  // namespace distca
