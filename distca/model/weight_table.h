#pragma once
// The table of a model's weights: one line for each, without PyTorch. Initial values, AdamW's
// groups, checkpoints, files for Hugging Face and figures of memory all come from it, so a new kind
// of weight is a line here.
//
//     for (const Weight& weight : weight_table(config)) total += weight.numel();
//
// Any thread may call these functions.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/model/llama_config.h"

namespace distca {

/// Along which axis of a weight ranks of tensor parallelism divide it. (No rank does so yet.)
enum class SplitAxis : uint8_t {
  kNone,     // every rank has all of it
  kRows,     // out features: q, k, v, gate, up, the embedding and the head
  kColumns,  // in features: o and down
};

/// Which layer a weight belongs to, if it is none of the numbered ones.
inline constexpr int kBeforeLayers = -1;  // the embedding
inline constexpr int kAfterLayers = -2;   // the last norm and the head

struct Weight {
  std::string name;            // Hugging Face's
  std::vector<int64_t> shape;  // of the full tensor: [out, in] of a matrix, [features] of a norm
  SplitAxis split = SplitAxis::kNone;
  int layer = kBeforeLayers;  // from 0, or one of the two above
  double initial_std = 0;     // of a matrix's initial normal values; norms begin as ones

  bool is_matrix() const { return shape.size() == 2; }
  /// Whether AdamW lets it decay. Norms do not.
  bool decays() const { return is_matrix(); }
  int64_t numel() const;
};

/// All weights, in the order of a model's parameters. A head that shares the embedding's weights is
/// not listed.
std::vector<Weight> weight_table(const LlamaConfig& config);

}  // namespace distca
