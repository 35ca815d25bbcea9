#pragma once
// What all ranks know before the layers of a forward exchange anything: the lengths of all ranks'
// documents, and the plans made of them, one for each kind of layer. It takes two small messages to
// each rank, so it may be made one batch ahead, in a thread, over a group of its own.

#include <cstdint>
#include <vector>

#include "distca/torch_ops/ranks.h"

namespace distca::torch_ops {

struct Agreement {
  struct Planned {
    LayerKind layer;
    api::BatchPlan plan;
  };

  api::BatchRequest request;  // of all ranks' documents; the rest is that of no kind
  std::vector<Planned> planned;

  /// Null: not planned.
  const api::BatchPlan* plan_of(const LayerKind& layer) const;
  /// Plans more kinds of layers and compares them with those of the other ranks. All ranks call it
  /// with equally many kinds; the ranks' mutex is locked. Throws Error(kUsage) that names a rank
  /// whose kind is another one, and Error(kPlan) if plans differ.
  void add(Ranks& over, const LayerKinds& layers);
};

/// Tells the other ranks the lengths of this rank's documents, learns theirs, and adds these kinds
/// of layers. All ranks call it. Locks the ranks' mutex. Throws Error(kUsage) that names the rank,
/// if a rank gives another number of kinds, and what `add` throws.
Agreement agree(Ranks& over, const std::vector<int64_t>& cu_seqlens, const LayerKinds& layers);

}  // namespace distca::torch_ops
