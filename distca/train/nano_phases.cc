#include <ATen/ATen.h>

#include "distca/train/nano_phases.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/comm/host_read.h"
#include "distca/model/operators.h"

namespace distca {
NanoPhases::NanoPhases(const Llama& model, StepAttention& attention, int nano_batch,
                       const LocalTokens& tokens, const NanoOptions& options)
    : model_(model),
      attention_(attention),
      nano_batch_(nano_batch),
      options_(options),
      chunks_(options.chunks(static_cast<int64_t>(tokens.ids.size()))),
      layers_(model.config().num_hidden_layers) {
  DISTCA_CHECK(!options.by_chunks() || options.chunk_rows > 0, "chunks of {} rows",
               options.chunk_rows);
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

void NanoPhases::play(const Op& op) {
  op.pass == Pass::kForward ? play_forward(op) : play_backward(op);
}

void NanoPhases::play_forward(const Op& op) {
  switch (op.kind) {
    case OpKind::kEmbed:
      return begin(model_.embed(ids_));
    case OpKind::kPreAttention:
      return pre_attention(op.layer);
    case OpKind::kPostAttention:
      return post_attention(op.layer);
    default:
      DISTCA_CHECK(false, "no forward operation: {}", describe(op));
  }
}

void NanoPhases::play_backward(const Op& op) {
  switch (op.kind) {
    case OpKind::kLoss:
      return;  // done in forward
    case OpKind::kPostAttention:
      return post_attention_backward(op.layer, op.leaves_weights);
    case OpKind::kPreAttention:
      return pre_attention_backward(op.layer, op.leaves_weights);
    case OpKind::kWeightGradient:
      return weight_gradient(op.layer);
    case OpKind::kEmbed:
      return embed_backward();
    default:
      DISTCA_CHECK(false, "no backward operation: {}", describe(op));
  }
}

void NanoPhases::pack(const Op& op) {
  DISTCA_CHECK(false, "{} of phases that nobody divides", describe(op));
}
void NanoPhases::land(const Op& op) { pack(op); }

void NanoPhases::begin(const at::Tensor& x) {
  DISTCA_CHECK(x.size(0) == ids_.size(0), "{} rows for {} tokens", x.size(0), ids_.size(0));
  x_ = x;
  rope_ = model_.rope(positions_);
}

at::Tensor NanoPhases::take_output() { return std::exchange(x_, at::Tensor()); }

std::shared_ptr<const Llama::Rope> NanoPhases::rope_of(int64_t begin, int64_t count) const {
  return count == ids_.size(0) ? rope_ : model_.part_of(*rope_, begin, count);
}

NanoPhases::Qkv NanoPhases::pre_attention_of_all(Layer& l, int layer, bool keeps) const {
  Qkv all;
  l.pre.clear();
  chunks_.for_each([&](int64_t begin, int64_t count) {
    Qkv of_chunk;
    std::shared_ptr<Llama::PreAttention> kept;
    model_.pre_attention(layer, l.x.narrow(0, begin, count), *rope_of(begin, count), &of_chunk.q,
                         &of_chunk.k, &of_chunk.v, keep(), keeps ? &kept : nullptr);
    chunks_.put(all.q, of_chunk.q, begin);
    chunks_.put(all.k, of_chunk.k, begin);
    chunks_.put(all.v, of_chunk.v, begin);
    if (keeps) l.pre.push_back(std::move(kept));
  });
  return all;
}

void NanoPhases::pre_attention(int layer) {
  Layer& l = layers_[layer];
  l.x = std::exchange(x_, at::Tensor());
  const bool keeps = at::GradMode::is_enabled() && !options_.by_chunks();
  const Qkv all = pre_attention_of_all(l, layer, keeps);
  attention_.set_qkv(nano_batch_, layer, all.q, all.k, all.v);
}

void NanoPhases::post_attention(int layer) {
  Layer& l = layers_[layer];
  const at::Tensor& o = attention_.o(nano_batch_, layer);
  const bool keeps = at::GradMode::is_enabled() && !options_.by_chunks();
  chunks_.for_each([&](int64_t begin, int64_t count) {
    chunks_.put(x_,
                model_.post_attention(layer, l.x.narrow(0, begin, count), o.narrow(0, begin, count),
                                      keep(), keeps ? &l.post : nullptr),
                begin);
  });
  if (!at::GradMode::is_enabled()) {
    attention_.drop(nano_batch_, layer);
    l = {};
  } else if (options_.by_chunks() && !options_.keys_travel_again) {
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

void NanoPhases::post_attention_backward(int layer, bool leaves_weights) {
  Layer& l = layers_[layer];
  const at::Tensor o = attention_.o(nano_batch_, layer);
  at::Tensor d_o;
  chunks_.for_each([&](int64_t begin, int64_t count) {
    const at::Tensor of_chunk = o.narrow(0, begin, count);
    const std::shared_ptr<Llama::PostAttention> kept =
        options_.by_chunks()
            ? model_.post_attention_again(layer, l.x.narrow(0, begin, count), of_chunk)
            : std::exchange(l.post, nullptr);
    at::Tensor d_y = gradient_.narrow(0, begin, count);
    if (count == ids_.size(0)) gradient_.reset();
    const auto [d_x, of_o] = model_.post_attention_backward(layer, of_chunk, *kept, std::move(d_y),
                                                            leaves_weights ? &l.left : nullptr);
    chunks_.put(l.d_x, d_x, begin);
    chunks_.put(d_o, of_o, begin);
  });
  gradient_.reset();
  if (options_.by_chunks() && !options_.keys_travel_again) {
    const Qkv all = pre_attention_of_all(l, layer, /*keeps=*/true);
    attention_.set_qkv_again(nano_batch_, layer, all.q, all.k, all.v);
  }
  attention_.set_d_o(nano_batch_, layer, d_o);
}

void NanoPhases::pre_attention_backward(int layer, bool leaves_weights) {
  Layer& l = layers_[layer];
  at::Tensor dq, dk, dv;
  std::tie(dq, dk, dv) = attention_.take_gradients(nano_batch_, layer);
  chunks_.for_each([&](int64_t begin, int64_t count) {
    const at::Tensor x = l.x.narrow(0, begin, count);
    const std::shared_ptr<const Llama::Rope> rope = rope_of(begin, count);
    std::shared_ptr<Llama::PreAttention> kept;
    if (!l.pre.empty()) {
      kept = std::exchange(l.pre[begin / chunks_.at_once], nullptr);
    } else {  // servers have got Q, K and V again without it
      Qkv unused;
      model_.pre_attention(layer, x, *rope, &unused.q, &unused.k, &unused.v, keep(), &kept);
    }
    const at::Tensor d_x = model_.pre_attention_backward(
        layer, x, *rope, *kept, dq.narrow(0, begin, count), dk.narrow(0, begin, count),
        dv.narrow(0, begin, count), leaves_weights ? &l.left : nullptr);
    if (leaves_weights && count == ids_.size(0)) {
      l.d_x = l.d_x + d_x;  // weight_gradient() still reads the former
    } else {
      l.d_x.narrow(0, begin, count).add_(d_x);
    }
  });
  gradient_ = l.d_x;
  l = {.left = std::move(l.left)};
}

void NanoPhases::weight_gradient(int layer) {
  Layer& l = layers_[layer];
  DISTCA_CHECK(l.left != nullptr, "backward of layer {} has left nothing", layer);
  model_.add_left(*std::exchange(l.left, nullptr));
}

bool NanoPhases::is_done() const {
  return is_over_ &&
         std::ranges::none_of(layers_, [](const Layer& l) { return l.left != nullptr; });
}

void NanoPhases::begin_backward(const at::Tensor& d_output) { gradient_ = d_output; }
at::Tensor NanoPhases::take_gradient() {
  at::Tensor gradient = gradient_;
  end_backward();
  return gradient;
}

void NanoPhases::embed_backward() {
  model_.embed_backward(*occurrences_, gradient_);
  end_backward();
}

/// Weight gradients that are left need nothing of this.
void NanoPhases::end_backward() {
  for (at::Tensor* const tensor : {&ids_, &targets_, &positions_, &gradient_}) tensor->reset();
  occurrences_.reset();
  rope_.reset();
  is_over_ = true;
}

}  // namespace distca
