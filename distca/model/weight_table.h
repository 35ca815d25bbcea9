#pragma once
// The table of a model's weights: one line for each, without PyTorch. Initial values, AdamW's
// groups, checkpoints, files for Hugging Face and figures of memory all come from it, so a new kind
// of weight is a line here.
//
//     for (const Weight& weight : weight_table(config)) total += weight.numel();
//
// Any thread may call these functions.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "distca/model/llama_config.h"

namespace distca {

// Both are defined in program/program.h.
enum class OpKind : uint8_t;
struct Stage;

/// Along which axis of a weight ranks of tensor parallelism divide it.
enum class SplitAxis : uint8_t {
  kNone,     // every rank has all of it
  kRows,     // out features: q, k, v, gate, up, the embedding and the head
  kColumns,  // in features: o and down
};

/// The layer of a weight that belongs to none of the numbered ones.
inline constexpr int kBeforeLayers = -1;  // the embedding
inline constexpr int kAfterLayers = -2;   // the last norm and the head

struct Weight {
  std::string name;            // Hugging Face's
  std::vector<int64_t> shape;  // the full tensor's: [out, in] of a matrix, else [features]
  SplitAxis split = SplitAxis::kNone;
  int layer = kBeforeLayers;  // from 0, or one of the two above
  /// The phase that computes with it where ranks divide the matrices; a tied embedding of one stage
  /// is used by kLoss, too. Where ranks do not, pre-attention has the first norm, too, and
  /// post-attention the output projection and the second norm (llama.h).
  OpKind phase = {};
  double initial_std = 0;  // std of a matrix's initial normal values; norms begin as ones
  /// True if the first and the last stage of a pipeline both hold it: a tied embedding. They sum
  /// its gradient together and update it to the same bits, so the first stage's is the one to save.
  bool is_tied = false;
  /// The heads that the divided side consists of. 0 means that a part may begin at any row.
  int64_t heads = 0;
  /// [dimension] What this rank holds of the full tensor. An empty list means all of it.
  std::vector<Range> box = {};
  /// The ranks that hold the same part, by their index in tensor parallelism. They are all ranks
  /// for a weight that is not divided, and neighbours for K and V where there are fewer key/value
  /// heads than ranks. Each of them has gradients by its own rows or heads alone.
  Range holders = {0, 1};

  bool is_matrix() const { return shape.size() == 2; }
  bool is_bias() const { return name.ends_with(".bias"); }  // begins as zeros
  /// Returns true if AdamW lets it decay. Norms and biases do not.
  bool decays() const { return is_matrix(); }
  /// Returns true if it is the last stage's copy of the first stage's weight.
  bool is_copy() const { return is_tied && layer == kAfterLayers; }
  /// The shape and the number of elements of what this rank holds.
  std::vector<int64_t> held_shape() const;
  int64_t numel() const;
};

/// Draws a part of a weight's initial values: those from number `chunk` * kNormalChunk
/// (base/normal.h) on, kNormalChunk of them or what is left. `values` are all of the full tensor's.
/// The bits depend on the seed and the name alone: they are the same on every rank and machine.
void draw_initial_values(const Weight& weight, uint64_t seed, int64_t chunk,
                         std::span<float> values);

/// All weights, in the order of a model's parameters. A head that shares the embedding's weights is
/// not listed.
std::vector<Weight> weight_table(const LlamaConfig& config);
/// The weights of a stage of a pipeline, in the same order: those of its layers, on the first stage
/// the embedding, and on the last one the last norm and the head. A tied embedding is on both: the
/// last stage's copy has its name and its initial values, and stands where a head would. With
/// tensor parallelism, each has the box that is its rank's. Q, K and V are divided by heads, and
/// the vocabulary as evenly as it can be. The ranks must divide the heads, and either divide the
/// key/value heads or be a multiple of them (CHECK).
std::vector<Weight> weight_table(const LlamaConfig& config, const Stage& stage);
/// The only stage where there is no pipeline.
Stage whole_model(const LlamaConfig& config);

/// Where weights lie that stand end to end in one buffer, in the order of the table. Gradients,
/// main params and AdamW's moments have this layout. A tied weight begins and ends with a block,
/// so that two stages can divide it alike whatever stands next to it. Weights that several ranks of
/// tensor parallelism hold come first, those with as many holders together in blocks of their own,
/// because all their holders sum their gradients.
struct FlatLayout {
  std::vector<int64_t> begins;  // [weight] elements; multiples of kFlatAlignment
  std::vector<size_t> order;    // the weights as they lie one after another
  int64_t elements = 0;         // with all gaps; a multiple of kFlatBlock
};
/// The number of elements that PyTorch's fused AdamW takes at a time: a part of a weight that
/// begins at a multiple of it is updated to the same bits as within the whole weight.
inline constexpr int64_t kFlatAlignment = 64;
/// The elements over which squares are summed for the gradient's norm, and the smallest part that
/// ranks divide a layout by. So the norm does not depend on how many ranks there are, but for what
/// two stages tie.
inline constexpr int64_t kFlatBlock = 4096;
FlatLayout flat_layout(const std::vector<Weight>& weights);

/// A flat layout where matrices and norms have elements of different sizes.
struct WeightOffsets {
  FlatLayout layout;
  std::vector<int64_t> begins;         // [weight] bytes
  std::vector<int64_t> element_bytes;  // [weight]
  int64_t bytes = 0;                   // bytes of all, with the gaps
  /// Returns the byte at which an element of the layout, or its end, lies.
  int64_t of(int64_t element) const;
};

/// The place where the weights are kept in full precision.
enum class MainParams : uint8_t {
  kHere,       // the parameters are the main params
  kElsewhere,  // matrices are in `dtype` and norms in the main params' type
};

/// The bytes of an element of the parameters of a model's stage, and where they lie.
WeightOffsets parameter_offsets(const LlamaConfig& config, const Stage& stage,
                                MainParams main_params);

}  // namespace distca
