#pragma once
// Layout `balanced`: homes where most queries can stay and keys travel least. Any thread.

#include "distca/plan/scheduler.h"

namespace distca {

/// Every worker holds the mean number of tokens to within 128 and, as nearly as that allows, its
/// share of the load to within the tolerance, if every query is computed where it lives. Several
/// constructions (layout_fill.h; where no document is long, also documents dealt by length) are
/// tried and the one of the fewest bytes is taken; with options.spread the one of the lowest
/// largest send and receive. A worker of capacity 0 gets the lightest tokens. The load of a
/// dedicated server lies on one worker, and that of the next one on the next worker, so that the
/// scheduler moves it from one place to one place. Workers of equal share that hold pieces of one
/// document are neighbours, the document's end first, so most keys stay inside a node.
/// Throws Error(kPlan) when the mean exceeds cluster.max_tokens_per_worker. Time: per construction
/// O(n log n) in documents, plus O(workers) for each whole document placed at worst (the parts of
/// cut documents that are left); with spread also layout_spread.h's. The more documents, the fewer
/// constructions: one from 16k documents and workers on.
Layout balanced_layout(const PlanRequest& request);

}  // namespace distca
