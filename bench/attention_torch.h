#pragma once
// PyTorch's scaled_dot_product_attention on the CPU, one thread, on the values of a problem of one
// causal sequence whose query heads have a key head each. Its best case: every head contiguous,
// memory reused instead of fetched from the system, in huge pages where the system grants them.
// Not thread-safe.

#include <memory>

#include "bench/attention_problem.h"

namespace distca::bench {

class TorchAttention {
 public:
  virtual ~TorchAttention() = default;
  virtual void run(Pass pass) = 0;
  /// Relative L2 distance of the problem's O from PyTorch's.
  virtual double distance(Problem& problem) = 0;
  /// huge_page_share of the least of its inputs' and its results' memory.
  virtual double huge_pages() const = 0;
};

/// nullptr in a build without PyTorch.
std::unique_ptr<TorchAttention> make_torch_attention(Problem& problem);

}  // namespace distca::bench
