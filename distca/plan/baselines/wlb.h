#pragma once
// Layout `wlb`: variable-length packing without deferral, the paper's baseline WLB-ideal (section
// 6). Any thread may call it.

#include "distca/plan/scheduler.h"

namespace distca {

/// Places whole documents, the longest first. A document goes to the worker with the least work if
/// this then holds at most Lmax tokens, otherwise to the one with the fewest tokens if that one
/// then does. Documents that fit neither go last, to the worker with the least work. The work of a
/// document is x^2 + x with x = tokens / 64,000. Lmax is cluster.max_tokens_per_worker, or without
/// one the mean number of tokens (the released driver's value, factor 1). Ties go to the lowest id.
/// The paper sweeps data x context parallelism. Here there is data parallelism alone, and a
/// document is never cut. Throws Error(kPlan) when a worker ends above max_tokens_per_worker.
/// Time: documents x workers.
Layout wlb_layout(const PlanRequest& request);

}  // namespace distca
