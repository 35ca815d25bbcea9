#pragma once
// Layout `balanced`: it chooses homes where most queries can stay and keys travel least. Any thread
// may call it.

#include "distca/plan/scheduler.h"

namespace distca {

/// Every worker holds the mean number of tokens to within 128. As nearly as that allows, it also
/// holds its share of the load to within the tolerance, if every query is computed where it lives.
/// Several constructions are tried (layout_fill.h, and where no document is long, documents dealt
/// out by length). The one with the fewest bytes is taken, or with options.spread the one with the
/// lowest largest send and receive. Documents in their order are taken where they are at least as
/// good in bytes, load and tokens. A worker of capacity 0 gets the lightest tokens. The load of a
/// dedicated server lies on one worker, and that of the next one on the next worker, so that the
/// scheduler moves it from one place to one place. Workers of equal share that hold pieces of one
/// document are neighbours, the document's end first, so most keys stay inside a node.
/// Throws Error(kPlan) when the mean exceeds cluster.max_tokens_per_worker.
/// Time: for each construction O(n log n) in documents, plus at worst O(workers) for each whole
/// document placed, because parts of cut documents that are left have to be passed, and with spread
/// the time of layout_spread.h. With more documents fewer constructions are tried: one from 16k
/// documents and workers on.
Layout balanced_layout(const PlanRequest& request);

}  // namespace distca
