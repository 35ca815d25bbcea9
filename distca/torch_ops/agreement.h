#pragma once
// An agreement is what all ranks know before the layers of a forward exchange anything: which
// documents, or which pieces of them, each rank has, and the plans made of them, one for each kind
// of layer. It takes one small message to each rank, so it may be made one batch ahead, in a
// thread, over a group of its own.
//
// Every rank plans for itself, and no rank may follow a plan that others do not have. A plan is a
// pure function of the documents, the kinds of layers and the planner. So the message with the
// documents carries a hash of the kinds and of the build, and one of the plans of the agreement
// before. A second message, before the plans are followed, compares the hashes of the plans
// themselves: the first time that a group plans for these kinds, wherever the kinds or the builds
// of two ranks differ, and for a kind that comes within a forward. Where it is left out, equal
// plans follow from equal inputs, and what the next message says of them checks that the planner
// was as pure as it should be.

#include <cstdint>
#include <vector>

#include "distca/torch_ops/ranks.h"

namespace distca::torch_ops {

/// The documents of one rank's rows, in their order. All ranks have whole documents, or all have
/// pieces; a rank without rows may have either.
struct RankDocuments {
  bool in_pieces = false;
  /// The lengths of whole documents. Or three numbers for each piece: the document, which is any
  /// number that all ranks call it by, and where the piece begins and ends in it.
  std::vector<int64_t> numbers;
};

struct Agreement {
  struct Planned {
    LayerKind layer;
    api::BatchPlan plan;
  };

  api::BatchRequest request;  // all ranks' documents; the fields of a kind of layer are arbitrary
  std::vector<Planned> planned;

  /// Returns null if that kind is not planned.
  const api::BatchPlan* plan_of(const LayerKind& layer) const;
  /// Plans more kinds of layers and compares them with those of the other ranks. All ranks call it
  /// with equally many kinds; the ranks' mutex is locked. Throws Error(kUsage) that names a rank
  /// whose kind is another one, and Error(kPlan) if plans differ.
  void add(Ranks& over, const LayerKinds& layers);
};

/// Tells the other ranks the documents of this one, learns theirs, and adds these kinds of layers.
/// All ranks call it. Locks the ranks' mutex. Throws Error(kUsage) that names the rank, if a rank
/// gives another number of kinds or has ended its loader, or if not all have pieces; the same with
/// document, tokens and ranks, if pieces are no whole documents; and what `add` throws. Throws
/// Error(kPlan) if the plans of the agreement before were not the same ones.
Agreement agree(Ranks& over, const RankDocuments& mine, const LayerKinds& layers);

/// Tells the other ranks that no batch comes any more after this many. All ranks call it where this
/// one does not call `agree`. Throws what `agree` throws, unless all ranks have had equally many.
void agree_on_end(Ranks& over, int64_t batches);

}  // namespace distca::torch_ops
