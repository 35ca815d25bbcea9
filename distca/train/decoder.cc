#include "distca/train/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "distca/base/error.h"
#include "distca/comm/aten_types.h"
#include "distca/kernels/rows.h"
#include "distca/runtime/task_lists.h"
#include "distca/runtime/tensor_rows.h"

namespace distca {

struct Decoder::Cache {
  at::Tensor k, v;  // [as many tokens as there is room for, G, D]
  kernels::Mask mask;
};

Decoder::Decoder(const Llama& model, int64_t max_tokens, int threads)
    : model_(model),
      max_tokens_(max_tokens),
      kernel_(KernelRequest{.shape = model.config().attention_shape(),
                            .type = model.config().dtype,
                            .threads = threads}) {
  constexpr int64_t kFirstTokens = 32;  // for which there is room from the beginning
  const LlamaConfig& config = model.config();
  const auto rows = [&] {
    return at::empty(
        {std::min(max_tokens, kFirstTokens), config.num_key_value_heads, config.head_dim},
        aten_type(config.dtype));
  };
  for (const int window : config.window_of_layer()) {
    caches_.push_back(
        {.k = rows(), .v = rows(), .mask = kernel_mask(config.shape(window).attention.mask)});
  }
}

Decoder::~Decoder() = default;

/// Makes room for so many tokens: twice what there was, so that copying costs little.
void Decoder::reserve(int64_t tokens) {
  DISTCA_CHECK(tokens <= max_tokens_, "{} tokens of {}", tokens, max_tokens_);
  for (Cache& cache : caches_) {
    for (at::Tensor* rows : {&cache.k, &cache.v}) {
      const int64_t room = rows->size(0);
      if (tokens <= room) return;
      const at::Tensor grown = at::empty(
          {std::min(max_tokens_, std::max(2 * room, tokens)), rows->size(1), rows->size(2)},
          rows->options());
      grown.narrow(0, 0, tokens_).copy_(rows->narrow(0, 0, tokens_));
      *rows = grown;
    }
  }
}

at::Tensor Decoder::feed(const at::Tensor& ids) {
  const c10::AutoGradMode no_grad(false);
  const int64_t count = ids.size(0);
  reserve(tokens_ + count);
  const auto rope = model_.rope(at::arange(tokens_, tokens_ + count, at::kLong));
  at::Tensor x = model_.embed(ids), q, k, v;
  for (int layer = 0; layer < static_cast<int>(caches_.size()); ++layer) {
    const Cache& cache = caches_[layer];
    model_.pre_attention(layer, x, *rope, &q, &k, &v);
    cache.k.narrow(0, tokens_, count).copy_(k);
    cache.v.narrow(0, tokens_, count).copy_(v);
    x = model_.post_attention(layer, x, attention(cache, q));
  }
  tokens_ += count;
  return x;
}

/// Returns O [T, H, D] of the next queries, q [T, H, D], whose keys and values are in the cache
/// already.
at::Tensor Decoder::attention(const Cache& cache, const at::Tensor& q) {
  const int64_t count = q.size(0), keys = tokens_ + count;
  const at::Tensor o = at::empty_like(q);
  const at::Tensor lse =
      at::empty({count, q.size(1), 1}, aten_type(kernels::accumulator_type(kernel_.type())));
  kernels::TaskList list;
  list.queries = {{.tokens = count, .q = rows_of(q), .o = rows_of(o), .lse = rows_of(lse)}};
  list.keys = {{.tokens = keys, .k = rows_of(cache.k), .v = rows_of(cache.v)}};
  list.tasks = {
      {.q_tokens = count, .q_position = tokens_, .keys = {{.tokens = keys}}, .mask = cache.mask}};
  kernel_.forward(kernel_.type(), list);
  return o;
}

}  // namespace distca
