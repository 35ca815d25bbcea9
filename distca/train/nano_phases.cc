#include <ATen/ATen.h>

#include "distca/train/nano_phases.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "distca/base/error.h"

namespace distca {

NanoPhases::NanoPhases(const Llama& model, StepAttention& attention, int nano_batch,
                       const LocalTokens& tokens, const NanoOptions& options)
    : NanoPlayer(model, attention, nano_batch, tokens, options),
      layers_(model.config().num_hidden_layers) {
  if (at::GradMode::is_enabled() && model.stage().is_first())
    occurrences_ = model.occurrences(tokens.ids);
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
    case OpKind::kPostAttention:
      return post_attention_backward(op.layer, op.leaves_weights);
    case OpKind::kPreAttention:
      return pre_attention_backward(op.layer, op.leaves_weights);
    case OpKind::kEmbed:
      model_.embed_backward(*std::exchange(occurrences_, nullptr), gradient_);
      return end_backward();
    default:
      DISTCA_CHECK(false, "no backward operation: {}", describe(op));
  }
}

void NanoPhases::pack(const Op& op) {
  DISTCA_CHECK(false, "{} of phases that nobody divides", describe(op));
}
void NanoPhases::land(const Op& op) { pack(op); }

void NanoPhases::qkv(int layer, const at::Tensor& rows, const Llama::Rope& rope, Qkv& made,
                     Kept* kept) const {
  model_.pre_attention(layer, rows, rope, &made.q, &made.k, &made.v, keep(), kept);
}

void NanoPhases::pre_attention(int layer) {
  Layer& l = layers_[layer];
  l.x = take_output();
  const Qkv all = qkv_of_all(layer, l.x, keeps() ? &l.pre : nullptr);
  attention_.set_qkv(nano_batch_, layer, all.q, all.k, all.v);
}

void NanoPhases::post_attention(int layer) {
  Layer& l = layers_[layer];
  const at::Tensor& o = attention_.o(nano_batch_, layer);
  chunks_.for_each([&](int64_t begin, int64_t count) {
    chunks_.put(x_,
                model_.post_attention(layer, l.x.narrow(0, begin, count), o.narrow(0, begin, count),
                                      keep(), keeps() ? &l.post : nullptr),
                begin);
  });
  drop_after_forward(layer);
  if (!at::GradMode::is_enabled()) l = {};
}

at::Tensor NanoPhases::loss(at::Tensor* of_tokens) {
  // Its backward follows at once, so that no logits wait for it.
  return model_.chunk_losses(take_output(), targets_, options_.loss_rows, options_.loss_scale,
                             of_tokens == nullptr ? &gradient_ : nullptr, of_tokens);
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
    if (count == chunks_.rows) gradient_.reset();
    const auto [d_x, of_o] = model_.post_attention_backward(
        layer, of_chunk, *kept, std::move(d_y), leaves_weights ? &left_[layer] : nullptr);
    chunks_.put(l.d_x, d_x, begin);
    chunks_.put(d_o, of_o, begin);
  });
  gradient_.reset();
  if (options_.makes_qkv_again()) {
    const Qkv all = qkv_of_all(layer, l.x, &l.pre);
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
    Kept kept;
    if (!l.pre.empty()) {
      kept = std::exchange(l.pre[begin / chunks_.at_once], nullptr);
    } else {  // servers have got Q, K and V again without it
      Qkv unused;
      qkv(layer, x, *rope, unused, &kept);
    }
    const at::Tensor d_x = model_.pre_attention_backward(
        layer, x, *rope, *kept, dq.narrow(0, begin, count), dk.narrow(0, begin, count),
        dv.narrow(0, begin, count), leaves_weights ? &left_[layer] : nullptr);
    if (leaves_weights && count == chunks_.rows) {
      l.d_x = l.d_x + d_x;  // kWeightGradient still reads the former
    } else {
      l.d_x.narrow(0, begin, count).add_(d_x);
    }
  });
  gradient_ = l.d_x;
  l = {};
}

}  // namespace distca
