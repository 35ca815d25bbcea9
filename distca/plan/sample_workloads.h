#pragma once
// Samples nano-batches from lists of document lengths, as the paper's experiments do (section 6,
// Data). The same options give the same nano-batches on every machine. Any thread may call the
// function.
//
//   const std::vector<NanoBatch> nano_batches =
//       sample_workloads(read_lengths("lengths.json"), {.count = 20, .ranks = 64});

#include <cstdint>
#include <vector>

#include "distca/batch/document.h"

namespace distca {

/// How lengths are changed. Documents of 65,536 tokens and more are long. In both kinds, the first
/// half of the short documents in the list is kept, and every long one is taken four times.
enum class SampleKind {
  kPretrain,  // lengths are multiplied by max_document_tokens / 65,536
  /// A long document becomes max_document_tokens long with probability 0.3.
  kProlong,
};

struct SampleOptions {
  SampleKind kind = SampleKind::kPretrain;
  int count = 1;  // number of nano-batches
  int ranks = 1;
  int64_t tokens_per_rank = 131'072;
  /// The length of a sequence. A nano-batch holds a whole number of sequences.
  int64_t max_document_tokens = 524'288;
  uint64_t seed = 42;
};

/// Draws documents in random order without replacement. Their lengths are rounded up to multiples
/// of 16 and fill sequences of max_document_tokens. What overflows one sequence begins the next. A
/// list that is too short for all nano-batches is drawn again in another order (at 512 ranks of
/// 131,072 tokens, the ProLong list holds about two nano-batches). The released code draws at most
/// 10,000 documents from Pretrain and leaves ProLong unshuffled, with all long documents first.
/// Here both lists are shuffled in full.
/// Throws Error(kData) for a list without documents to keep, and for a nano-batch that is not a
/// whole number of sequences.
std::vector<NanoBatch> sample_workloads(const std::vector<int64_t>& lengths,
                                        const SampleOptions& options);

}  // namespace distca
