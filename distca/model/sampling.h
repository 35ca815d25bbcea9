#pragma once
// Draws the next token from a model's logits. It needs no PyTorch.
//
//     Sampler sampler({.temperature = 0.8, .top_p = 0.9}, /*seed=*/1);
//     const int64_t id = sampler.next(logits);
//
// Thread rule: one thread at a time uses a sampler.

#include <cstdint>
#include <span>
#include <vector>

#include "distca/base/random.h"

namespace distca {

/// How a token is drawn, with the names and the order of transformers: temperature, then top_k,
/// then top_p.
struct Sampling {
  double temperature = 1;  // logits are divided by it. 0 means the most likely token, always.
  int64_t top_k = 0;       // only so many of the most likely tokens. 0 means all.
  double top_p = 1;        // only the fewest of these whose probabilities sum up to this share
};

class Sampler {
 public:
  /// Equal seeds draw equal tokens from equal logits.
  Sampler(const Sampling& sampling, uint64_t seed) : sampling_(sampling), random_(seed) {}

  /// A token id, an index of `logits` [vocab_size]. Of tokens that are equally likely, the first
  /// one counts as more likely. Throws Error(kCheckpoint) if a logit is not finite.
  int64_t next(std::span<const float> logits);

 private:
  Sampling sampling_;
  Random random_;
  std::vector<int64_t> order_;   // ids that may be drawn, most likely first where some may not
  std::vector<double> weights_;  // probabilities of order_, except for a factor
};

}  // namespace distca
