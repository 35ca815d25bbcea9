#pragma once
// Layout `per-document-cp`: per-document context parallelism over all workers (paper 2 and 3.2).
// Any thread.

#include "distca/plan/scheduler.h"

namespace distca {

/// With c workers a document is cut in 2c shards of whole blocks of 128 tokens (the last may be
/// short), as equal as blocks allow; worker i holds shards i and 2c - 1 - i. Blocks left over, and
/// all blocks of a document shorter than 2c, go one at a time to the workers with the fewest
/// tokens, to the lower shard first. Ties by the lowest id. Throws Error(kPlan) when a worker ends
/// above max_tokens_per_worker.
/// Time: documents x workers x log(workers).
Layout per_document_layout(const PlanRequest& request);

}  // namespace distca
