#pragma once
// What all ranks know before the layers of a forward exchange anything: the lengths of all ranks'
// documents, and the plans made of them, one for each kind of layer. It takes two small messages to
// each rank, so it may be made one batch ahead, in a thread, over a group of its own.

#include <cstdint>
#include <string_view>
#include <vector>

#include "distca/torch_ops/ranks.h"

namespace distca::torch_ops {

struct Agreement {
  struct Planned {
    LayerKind layer;
    api::BatchPlan plan;
  };

  api::BatchRequest request;  // of all ranks' documents; its shape and window are those of no kind
  std::vector<Planned> planned;

  /// Null: not planned.
  const api::BatchPlan* plan_of(const LayerKind& layer) const;
  /// Plans one more kind of layer. All ranks call it; the ranks' mutex is locked.
  const api::BatchPlan& add(Ranks& over, const LayerKind& layer);
};

/// Tells the other ranks the lengths of this rank's documents, learns theirs, and plans these kinds
/// of layers; all ranks call it. `linear_work`: see BatchRequest. Locks the ranks' mutex. Throws
/// Error(kUsage) that names the rank, if a rank gives other kinds or another linear work, and
/// Error(kPlan) if plans differ.
Agreement agree(Ranks& over, const std::vector<int64_t>& cu_seqlens,
                const std::vector<LayerKind>& layers, int64_t linear_work);

}  // namespace distca::torch_ops
