#pragma once
// Layout `wlb`: variable-length packing without deferral, the paper's baseline WLB-ideal
// (section 6). Any thread.

#include "distca/plan/scheduler.h"

namespace distca {

/// Whole documents, the longest first: to the worker with the least work if it then holds at most
/// Lmax tokens, else to the one with the fewest tokens if it then does; what is left goes to
/// whoever has the least work. Work of a document: x^2 + x with x = tokens / 64,000. Lmax is
/// cluster.max_tokens_per_worker, without one the mean of tokens over workers (the released
/// driver's value, factor 1). Ties by the lowest id. The paper sweeps data x context parallelism:
/// here data parallelism alone, a document is never cut. Throws Error(kPlan) when a worker ends
/// above max_tokens_per_worker.
/// Time: documents x workers.
Layout wlb_layout(const PlanRequest& request);

}  // namespace distca
