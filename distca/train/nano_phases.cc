#include <ATen/ATen.h>

#include "distca/train/nano_phases.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/comm/host_read.h"

namespace distca {
namespace {

/// A tensor without its graph. Other than detach(), this is no operator that PyTorch dispatches.
at::Tensor without_graph(const at::Tensor& tensor) { return at::Tensor(tensor.variable_data()); }

/// A tensor that starts a graph.
at::Tensor leaf(const at::Tensor& tensor) {
  return without_graph(tensor).requires_grad_(at::GradMode::is_enabled());
}

}  // namespace

NanoPhases::NanoPhases(const Llama& model, StepAttention& attention, int nano_batch,
                       const LocalTokens& tokens, const Options& options)
    : model_(model),
      attention_(attention),
      nano_batch_(nano_batch),
      options_(options),
      layers_(model.config().num_hidden_layers) {
  DISTCA_CHECK(!by_chunks() || options.chunk_rows > 0, "chunks of {} rows", options.chunk_rows);
  const at::Device device = model.parameters()[0].device();
  const auto tensor = [&](const std::vector<int64_t>& values) {
    return upload(at::tensor(values, at::kLong), device);
  };
  ids_ = tensor(tokens.ids);
  targets_ = tensor(tokens.targets);
  positions_ = tensor(tokens.positions);
  if (at::GradMode::is_enabled() && model.stage().is_first())
    occurrences_ = model.occurrences(tokens.ids);
}

Keep NanoPhases::keep() const {
  return options_.recompute == Recompute::kNone ? Keep::kProducts : Keep::kInputs;
}

/// At least once: no rows have shapes, too.
void NanoPhases::for_chunks(const std::function<void(int64_t begin, int64_t count)>& work) const {
  const int64_t total = ids_.size(0);
  int64_t begin = 0;
  do {
    work(begin, std::min(options_.chunk_rows, total - begin));
    begin += options_.chunk_rows;
  } while (begin < total);
}

/// Puts a chunk's rows into those of all tokens.
void NanoPhases::put(at::Tensor& all, const at::Tensor& rows, int64_t begin) const {
  if (rows.size(0) == ids_.size(0)) {
    all = rows;
    return;
  }
  if (!all.defined()) {
    std::vector<int64_t> sizes = rows.sizes().vec();
    sizes[0] = ids_.size(0);
    all = at::empty(sizes, rows.options().requires_grad(false));
  }
  all.narrow(0, begin, rows.size(0)).copy_(rows);
}

void NanoPhases::embed() { begin(model_.embed(ids_)); }

void NanoPhases::begin(const at::Tensor& x) {
  DISTCA_CHECK(x.size(0) == ids_.size(0), "{} rows for {} tokens", x.size(0), ids_.size(0));
  x_ = x;
  rope_ = model_.rope(positions_);
}

at::Tensor NanoPhases::take_output() { return std::exchange(x_, at::Tensor()); }

void NanoPhases::pre_attention_of(int layer, const at::Tensor& x, int64_t begin,
                                  Chunk& chunk) const {
  model_.pre_attention(layer, x, *model_.part_of(*rope_, begin, x.size(0)), &chunk.q, &chunk.k,
                       &chunk.v, keep());
}

void NanoPhases::pre_attention(int layer) {
  Layer& l = layers_[layer];
  if (by_chunks()) {
    const c10::AutoGradMode no_grad(false);
    l.x = x_;
    at::Tensor q, k, v;
    for_chunks([&](int64_t begin, int64_t count) {
      Chunk chunk;
      pre_attention_of(layer, l.x.narrow(0, begin, count), begin, chunk);
      put(q, chunk.q, begin);
      put(k, chunk.k, begin);
      put(v, chunk.v, begin);
    });
    return attention_.set_qkv(nano_batch_, layer, q, k, v);
  }
  l.x = leaf(x_);
  model_.pre_attention(layer, l.x, *rope_, &l.q, &l.k, &l.v, keep());
  attention_.set_qkv(nano_batch_, layer, without_graph(l.q), without_graph(l.k),
                     without_graph(l.v));
}

void NanoPhases::post_attention(int layer) {
  Layer& l = layers_[layer];
  const at::Tensor& o = attention_.o(nano_batch_, layer);
  if (by_chunks()) {
    const c10::AutoGradMode no_grad(false);
    at::Tensor y;
    for_chunks([&](int64_t begin, int64_t count) {
      put(y, model_.post_attention(layer, l.x.narrow(0, begin, count), o.narrow(0, begin, count)),
          begin);
    });
    x_ = y;
  } else {
    l.o = leaf(o);
    l.y = model_.post_attention(layer, l.x, l.o, keep());
    x_ = without_graph(l.y);
  }
  if (!at::GradMode::is_enabled()) {
    attention_.drop(nano_batch_, layer);
    l = {};
  } else if (by_chunks() && !options_.keys_travel_again) {
    attention_.drop_qkv(nano_batch_, layer);
  }
}

at::Tensor NanoPhases::loss() {
  // Its backward follows at once, so that no logits wait for it.
  at::Tensor sums =
      model_.chunk_losses(x_, targets_, options_.loss_rows, options_.loss_scale, &gradient_);
  x_.reset();
  return sums;
}

at::Tensor NanoPhases::evaluated_loss(at::Tensor* of_tokens) {
  at::Tensor sums = model_.chunk_losses(x_, targets_, options_.loss_rows, /*scale=*/1,
                                        /*d_x=*/nullptr, of_tokens);
  x_.reset();
  return sums;
}

void NanoPhases::post_attention_backward(int layer) {
  Layer& l = layers_[layer];
  if (!by_chunks()) {
    torch::autograd::backward({l.y}, {std::exchange(gradient_, at::Tensor())});
    model_.collect_gradients(layer);
    attention_.set_d_o(nano_batch_, layer, l.o.grad());
    l.y.reset();
    l.o.reset();
    return;
  }
  const at::Tensor o = attention_.o(nano_batch_, layer);
  at::Tensor d_o;
  for_chunks([&](int64_t begin, int64_t count) {
    const at::Tensor x = leaf(l.x.narrow(0, begin, count)),
                     of_chunk = leaf(o.narrow(0, begin, count));
    torch::autograd::backward({model_.post_attention(layer, x, of_chunk)},
                              {gradient_.narrow(0, begin, count)});
    model_.collect_gradients(layer);
    put(l.d_x, x.grad(), begin);
    put(d_o, of_chunk.grad(), begin);
  });
  gradient_.reset();
  if (!options_.keys_travel_again) set_qkv_again(layer);
  attention_.set_d_o(nano_batch_, layer, d_o);
}

NanoPhases::Chunk NanoPhases::pre_attention_again(int layer, int64_t begin, int64_t count) const {
  const Layer& l = layers_[layer];
  Chunk chunk{.x = leaf(l.x.narrow(0, begin, count))};
  chunk.x.mutable_grad() = l.d_x.narrow(0, begin, count);
  pre_attention_of(layer, chunk.x, begin, chunk);
  return chunk;
}

/// For core attention. The graphs stay for the phase's own backward, which comes after it.
void NanoPhases::set_qkv_again(int layer) {
  Layer& l = layers_[layer];
  at::Tensor q, k, v;
  for_chunks([&](int64_t begin, int64_t count) {
    const Chunk& chunk = l.chunks.emplace_back(pre_attention_again(layer, begin, count));
    put(q, without_graph(chunk.q), begin);
    put(k, without_graph(chunk.k), begin);
    put(v, without_graph(chunk.v), begin);
  });
  attention_.set_qkv_again(nano_batch_, layer, q, k, v);
}

void NanoPhases::pre_attention_backward(int layer) {
  Layer& l = layers_[layer];
  at::Tensor dq, dk, dv;
  attention_.take_gradients(nano_batch_, layer, &dq, &dk, &dv);
  if (by_chunks()) {
    for_chunks([&](int64_t begin, int64_t count) {
      const Chunk chunk = l.chunks.empty()
                              ? pre_attention_again(layer, begin, count)
                              : std::exchange(l.chunks[begin / options_.chunk_rows], {});
      torch::autograd::backward(
          {chunk.q, chunk.k, chunk.v},
          {dq.narrow(0, begin, count), dk.narrow(0, begin, count), dv.narrow(0, begin, count)});
      model_.collect_gradients(layer);
    });
    gradient_ = l.d_x;
  } else {
    torch::autograd::backward({l.q, l.k, l.v}, {dq, dk, dv});
    model_.collect_gradients(layer);
    gradient_ = l.x.grad();
  }
  l = {};
}

void NanoPhases::begin_backward(const at::Tensor& d_output) { gradient_ = d_output; }
at::Tensor NanoPhases::take_gradient() { return std::exchange(gradient_, at::Tensor()); }

void NanoPhases::embed_backward() { model_.embed_backward(*occurrences_, gradient_); }

}  // namespace distca
