#pragma once
// A plan that only exchanges: both workers hold the same, and each computes some of the other's
// documents. Nothing is balanced by it; what is measured is the exchange. Plain values, any thread.

#include <cstdint>

#include "distca/plan/plan.h"

namespace distca::bench {

/// The tokens that each of the two workers holds of a nano-batch.
struct SwappedBatch {
  int64_t home_tokens = 0;     // in one document, attended where it lives, in two tasks
  int64_t swapped_tokens = 0;  // in one document that the other worker attends
};

/// Throws CheckFailure where the validator refuses it.
Plan swapped_plan(const SwappedBatch& batch, const AttentionShape& shape);

}  // namespace distca::bench
