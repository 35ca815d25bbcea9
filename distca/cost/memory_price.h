#pragma once
// Bytes of memory that the tokens of a nano-batch take on a rank between forward and backward. Any
// thread.

#include <cstdint>

#include "distca/cost/attention_cost.h"

namespace distca {

struct MemoryPrice {
  int64_t token_bytes = 0;       // activations of one home token, all layers
  int64_t kept_query_bytes = 0;  // one received query (Q) kept until backward, all layers
  int64_t kept_key_bytes = 0;    // one received key (K and V) kept until backward, all layers
  bool operator==(const MemoryPrice&) const = default;
};

/// Counts: what a rank's home tokens and received tokens keep until backward. Ignores: weights,
/// gradients, optimizer state, buffers of messages under way, the allocator's fragmentation.
int64_t memory_bytes(const MemoryPrice& price, int64_t home_tokens, int64_t received_queries,
                     int64_t received_keys);

/// A Llama-type decoder on one rank: sizes as that rank has them.
struct ModelShape {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  AttentionShape attention;
  int64_t vocab_size = 0;
};

/// What model/ and runtime/ keep of the layers; autograd saves what backward reads.
/// Counts: the layer's input; of both norms the input, the rows before the weight and their factor
/// in fp32 (fp64 for fp64), and the output; Q, K, V, O and LSE; four vectors of the MLP (gate, its
/// SiLU, up, their product). Ignores: embedding and loss (logits), the weights cast to the compute
/// type.
MemoryPrice llama_memory(const ModelShape& layers);

}  // namespace distca
