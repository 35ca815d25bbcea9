#pragma once
// Nano-batches sampled from lists of document lengths as the paper's experiments do (section 6,
// Data). Pure: the same options give the same nano-batches on every machine. Any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/plan/plan_batch_input.h"

namespace distca {

/// Documents of 65,536 tokens and more are long. Of the short ones the first half of the list is
/// kept, every long one is there four times.
enum class SampleKind {
  kPretrain,  // every length is multiplied by max_document_tokens / 65,536
  kProlong,   // a long document has max_document_tokens tokens with probability 0.3
};

struct SampleOptions {
  SampleKind kind = SampleKind::kPretrain;
  int count = 1;  // nano-batches
  int ranks = 1;
  int64_t tokens_per_rank = 131'072;
  int64_t max_document_tokens = 524'288;  // a nano-batch holds a whole number of these
  uint64_t seed = 42;
};

/// Documents are drawn in random order without replacement; their lengths, rounded up to multiples
/// of 16, fill sequences of max_document_tokens, and what overflows one begins the next. A list too
/// short for all nano-batches is drawn again in another order (at 512 ranks of 131,072 tokens the
/// ProLong list holds about two nano-batches). The released code draws from Pretrain 10,000 at
/// most and leaves ProLong unshuffled, all long documents first: here both are shuffled in full.
/// Throws Error(kData) for a list without documents to keep and for a nano-batch that is no whole
/// number of sequences.
std::vector<Workload> sample_workloads(const std::vector<int64_t>& lengths,
                                       const SampleOptions& options);

}  // namespace distca
