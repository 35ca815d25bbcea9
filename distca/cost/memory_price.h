#pragma once
// The bytes of memory that the tokens of a nano-batch take on a rank between forward and backward.
// Any thread may call the functions.
//
//   cluster.memory = llama_memory(model);       // ModelShape model
//   cluster.max_memory_bytes = 16'000'000'000;  // no rank's tokens may take more

#include <cstdint>

#include "distca/cost/attention_shape.h"

namespace distca {

/// Bytes of one token, over all layers. The memory of a rank is the sum over its home tokens, the
/// queries that it receives and the keys that it receives.
/// Counts: what these tokens keep until backward. Ignores: weights, gradients, optimizer state,
/// buffers of messages under way, fragmentation of the allocator.
struct MemoryPrice {
  int64_t token_bytes = 0;       // activations of a token at home
  int64_t kept_query_bytes = 0;  // a received query (Q), kept until backward
  int64_t kept_key_bytes = 0;    // a received key (K and V), kept until backward
  bool operator==(const MemoryPrice&) const = default;
};

/// The parts of a layer that are computed again in backward instead of being kept (train.recompute;
/// the words are Megatron-LM's). Core attention is never computed again, and nothing travels again
/// for it.
enum class Recompute : uint8_t {
  kNone,
  kSelective,  // the rows of both norms and the product inside the MLP
  kFull,       // everything but core attention: from the layer's input, and from O
};

/// A decoder of Llama's kind as one rank has it: its own layers, and heads, inner features and
/// vocabulary divided by tensor parallelism.
struct ModelShape {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  AttentionShape attention;
  int64_t vocab_size = 0;
  bool has_qk_norm = false;  // true if each head's Q and K are normalized before RoPE
  int64_t tensor_ranks = 1;  // ranks that divide these sizes and, between matrices, the rows
};

/// The memory price of a Llama-type model, as model/ and runtime/ keep its layers.
/// Counts: the layer's input; the second norm's; both norms' factors in fp32 (fp64 for fp64) and
/// their outputs; Q, K, V, O and LSE; three vectors of the MLP (gate, up and the product). With
/// kSelective, neither norms' outputs nor the product; with kFull, only the layer's input, O and
/// LSE. A norm of Q and K keeps what it reads and its factors, but not with kFull. Ignores:
/// embedding and loss (logits), copies of weights, what one layer computes again.
/// `keys_travel_again` says that servers get Q, K, V again for backward, so that homes keep them
/// under kFull, too. Of ranks that divide layers, it is what a token of the server takes on each
/// of them in the mean: both norms' inputs and factors are on one rank, also with kFull, and no
/// norm's output is kept.
MemoryPrice llama_memory(const ModelShape& layers, Recompute recompute = Recompute::kNone,
                         bool keys_travel_again = false);

/// Bytes of one token at home, over all layers, that are kept from backward until its weight
/// gradients are computed, where these wait: rows and gradients that their products read. Each of
/// the ranks that divide layers keeps whole rows of the inputs that it has gathered.
int64_t left_token_bytes(const ModelShape& layers);

}  // namespace distca
