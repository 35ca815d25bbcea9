#pragma once
// Computes a document part after part, and keeps the keys and values of all layers (a KV cache), so
// that a token that follows costs one token's work. The phases are the model's own, and attention
// is that of training.
//
//     Decoder decoder(model, /*max_tokens=*/512, /*threads=*/2);
//     at::Tensor x = decoder.feed(prompt);                     // all of its tokens at once
//     at::Tensor logits = model.logits(x.slice(0, -1));        // of the token after the last one
//     x = decoder.feed(at::tensor({id}));                      // and so on, one by one
//
// Letters as in model/llama.h. The CPU alone. Thread rule: one thread a decoder.

#include <cstdint>
#include <vector>

#include "distca/model/llama.h"
#include "distca/runtime/attention_kernel.h"

namespace distca {

class Decoder {
 public:
  /// Prepares for one document of at most `max_tokens`. The model must be of one stage and outlive
  /// the decoder. `threads` are those of DistCA's own attention kernel.
  Decoder(const Llama& model, int64_t max_tokens, int threads);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// The next tokens of the document: ids [T] int64 -> x [T, C] of the last layer, without a graph.
  at::Tensor feed(const at::Tensor& ids);
  /// How many tokens were fed.
  int64_t tokens() const { return tokens_; }

 private:
  struct Cache;
  void reserve(int64_t tokens);
  at::Tensor attention(const Cache& cache, const at::Tensor& q);

  const Llama& model_;
  int64_t max_tokens_ = 0, tokens_ = 0;
  AttentionKernel kernel_;
  std::vector<Cache> caches_;  // [layers] keys and values
};

}  // namespace distca
