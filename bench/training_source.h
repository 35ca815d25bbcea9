#pragma once
// The batches of bench/training, as document lengths. Pure: the same options give the same batches.
// Any thread.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/step_figures.h"

namespace distca::bench {

struct BatchShape {
  int64_t nano_batch_tokens = 8192;
  int64_t nano_batches = 2;
  int workers = 2;
  int64_t tokens() const { return nano_batch_tokens * nano_batches; }
};

/// Where batches come from.
struct BatchSource {
  std::string name;  // "real", "long-tailed"
  std::string what;  // in words, with the sizes
  std::vector<BatchLengths> batches;
};

/// Documents of a prepared data set, in a seeded order, cut at 3/4 of a nano-batch as in
/// configs/demo.toml. Throws Error(kData) naming the file and what makes it, where it is missing.
BatchSource real_source(const std::filesystem::path& prefix, const BatchShape& shape, int count,
                        uint64_t seed);

/// Sampled from `folder`/lengths_pretrain.json as the paper does (plan/sample_workloads.h), scaled
/// so that the longest document is half a nano-batch. Throws Error(kData) where it is missing.
BatchSource long_tailed_source(const std::filesystem::path& folder, const BatchShape& shape,
                               int count, uint64_t seed);

/// Equal documents, equally many on each worker, with about as many (query, key) pairs as `pairs`,
/// those of a batch.
BatchLengths equal_documents(const BatchShape& shape, int64_t pairs);
/// Likewise, with as many pairs as the batches of a source have on average.
BatchLengths typical_equal_documents(const BatchShape& shape, const BatchSource& source);

}  // namespace distca::bench
