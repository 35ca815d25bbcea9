#pragma once
// Layout `per-document-cp`: context parallelism for each document over all workers (paper 2 and
// 3.2). Any thread may call it.

#include "distca/plan/scheduler.h"

namespace distca {

/// With c workers, a document is cut into 2c shards of whole blocks of 128 tokens (the last block
/// may be short), as equal as blocks allow. Worker i holds the shards i and 2c - 1 - i. Blocks that
/// are left over, and all blocks of a document with fewer than 2c, go one at a time to the workers
/// with the fewest tokens, to the lower shard first. Ties go to the lowest id. Throws Error(kPlan)
/// when a worker ends above max_tokens_per_worker.
/// Time: documents x workers x log(workers).
Layout per_document_layout(const PlanRequest& request);

}  // namespace distca
