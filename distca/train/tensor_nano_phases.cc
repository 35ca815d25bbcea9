#include <ATen/ATen.h>

#include "distca/train/tensor_nano_phases.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "distca/base/error.h"

namespace distca {

TensorNanoPhases::TensorNanoPhases(const Llama& model, StepAttention& attention,
                                   TensorMessages& messages, int nano_batch,
                                   const LocalTokens& tokens, const NanoOptions& options)
    : NanoPlayer(model, attention, nano_batch, tokens, options),
      phases_(model),
      messages_(messages),
      layers_(model.config().num_hidden_layers) {
  if (at::GradMode::is_enabled() && model.stage().is_first())
    own_ids_ = phases_.own_ids(tokens.ids);
}

void TensorNanoPhases::pack(const Op& op) {
  if (op.kind == OpKind::kSumRows) return;  // the phase has left its parts there
  if (op.pass == Pass::kForward) return messages_.pack(op, std::exchange(normed_, at::Tensor()));
  if (op.of_phase == OpKind::kEmbed) return messages_.pack(op, gradient_);
  const Layer& l = layers_[op.layer];
  if (op.of_phase == OpKind::kPostAttention) {
    messages_.pack(op, gradient_, phases_.norm_again(op.layer, Branch::kMlp, l.m, l.mlp_factors));
  } else {
    messages_.pack(op, l.d_m,
                   phases_.norm_again(op.layer, Branch::kAttention, l.x, l.attention_factors));
  }
}

void TensorNanoPhases::land(const Op& op) {
  if (op.kind == OpKind::kGatherRows) return;  // phases read them where they lie
  const at::Tensor sum = messages_.sum(op);
  if (op.pass == Pass::kBackward) {
    d_normed_ = sum;
  } else if (op.of_phase == OpKind::kEmbed) {
    begin(sum);
  } else if (op.of_phase == OpKind::kOutProjection) {
    Layer& l = layers_[op.layer];
    l.m = l.x + sum;
  } else {
    Layer& l = layers_[op.layer];
    x_ = l.m + sum;
    if (!at::GradMode::is_enabled()) l = {};
  }
}

void TensorNanoPhases::play_forward(const Op& op) {
  if (op.kind == OpKind::kEmbed) {
    messages_.parts(op).copy_(phases_.embed_part(ids_));
    return;
  }
  Layer& l = layers_[op.layer];
  switch (op.kind) {
    case OpKind::kAttentionNorm:
      l.x = take_output();
      normed_ = phases_.norm(op.layer, Branch::kAttention, l.x, &l.attention_factors);
      break;
    case OpKind::kPreAttention:
      pre_attention(op);
      break;
    case OpKind::kOutProjection:
      phases_.out_projection(op.layer, attention_.o(nano_batch_, op.layer), messages_.parts(op));
      drop_after_forward(op.layer);
      break;
    case OpKind::kMlpNorm:
      normed_ = phases_.norm(op.layer, Branch::kMlp, l.m, &l.mlp_factors);
      break;
    case OpKind::kPostAttention:
      post_attention(op);
      break;
    default:
      DISTCA_CHECK(false, "no forward operation: {}", describe(op));
  }
}

void TensorNanoPhases::play_backward(const Op& op) {
  if (op.kind == OpKind::kEmbed) {
    phases_.embed_backward(*std::exchange(own_ids_, nullptr), messages_.rows(op));
    return end_backward();
  }
  Layer& l = layers_[op.layer];
  switch (op.kind) {
    case OpKind::kPostAttention:
      post_attention_backward(op);
      break;
    case OpKind::kMlpNorm:
      l.d_m = phases_.norm_backward(op.layer, Branch::kMlp, l.m, l.mlp_factors,
                                    std::exchange(d_normed_, at::Tensor()));
      l.d_m.add_(std::exchange(gradient_, at::Tensor()));  // by the residual
      l.m.reset();
      l.mlp_factors.reset();
      break;
    case OpKind::kOutProjection:
      out_projection_backward(op);
      break;
    case OpKind::kPreAttention:
      pre_attention_backward(op);
      break;
    case OpKind::kAttentionNorm:
      gradient_ = phases_.norm_backward(op.layer, Branch::kAttention, l.x, l.attention_factors,
                                        std::exchange(d_normed_, at::Tensor()));
      gradient_.add_(l.d_m);
      l = {};
      break;
    default:
      DISTCA_CHECK(false, "no backward operation: {}", describe(op));
  }
}

void TensorNanoPhases::qkv(int layer, const at::Tensor& rows, const Llama::Rope& rope, Qkv& made,
                           Kept* kept) const {
  phases_.projections(layer, rows, rope, &made.q, &made.k, &made.v, kept);
}

void TensorNanoPhases::pre_attention(const Op& op) {
  const Qkv all =
      qkv_of_all(op.layer, messages_.rows(op), keeps() ? &layers_[op.layer].pre : nullptr);
  attention_.set_qkv(nano_batch_, op.layer, all.q, all.k, all.v);
}

void TensorNanoPhases::post_attention(const Op& op) {
  const at::Tensor h = messages_.rows(op), parts = messages_.parts(op);
  chunks_.for_each([&](int64_t begin, int64_t count) {
    std::shared_ptr<Llama::PostAttention> kept;
    phases_.mlp(op.layer, h.narrow(0, begin, count), keep(), keeps() ? &kept : nullptr,
                parts.narrow(0, begin, count));
    if (keeps()) layers_[op.layer].post.push_back(std::move(kept));
  });
}

at::Tensor TensorNanoPhases::loss(at::Tensor* of_tokens) {
  const at::Tensor sums = phases_.chunk_losses(
      messages_, take_output(), targets_, options_.loss_rows, options_.loss_scale,
      of_tokens == nullptr ? &gradient_ : nullptr, of_tokens);
  const bool reports = model_.stage().tensor.index == 0;
  return reports ? sums : at::Tensor();
}

void TensorNanoPhases::post_attention_backward(const Op& op) {
  Layer& l = layers_[op.layer];
  const at::Tensor d_y = messages_.rows(op), h = messages_.rows(op, /*second=*/true),
                   parts = messages_.parts(op);
  chunks_.for_each([&](int64_t begin, int64_t count) {
    const at::Tensor rows = h.narrow(0, begin, count);
    const std::shared_ptr<Llama::PostAttention> kept =
        l.post.empty() ? phases_.mlp_again(op.layer, rows)
                       : std::exchange(l.post[begin / chunks_.at_once], nullptr);
    phases_.mlp_backward(op.layer, *kept, d_y.narrow(0, begin, count), rows,
                         op.leaves_weights ? &left_[op.layer] : nullptr,
                         parts.narrow(0, begin, count));
  });
  l.post.clear();
}

void TensorNanoPhases::out_projection_backward(const Op& op) {
  Layer& l = layers_[op.layer];
  const at::Tensor d_y = messages_.rows(op), o = attention_.o(nano_batch_, op.layer);
  at::Tensor d_o;
  chunks_.for_each([&](int64_t begin, int64_t count) {
    chunks_.put(d_o,
                phases_.out_projection_backward(op.layer, o.narrow(0, begin, count),
                                                d_y.narrow(0, begin, count),
                                                op.leaves_weights ? &left_[op.layer] : nullptr),
                begin);
  });
  if (options_.makes_qkv_again()) {
    const Qkv all = qkv_of_all(op.layer, messages_.rows(op, /*second=*/true), &l.pre);
    attention_.set_qkv_again(nano_batch_, op.layer, all.q, all.k, all.v);
  }
  attention_.set_d_o(nano_batch_, op.layer, d_o);
}

void TensorNanoPhases::pre_attention_backward(const Op& op) {
  Layer& l = layers_[op.layer];
  at::Tensor dq, dk, dv;
  std::tie(dq, dk, dv) = attention_.take_gradients(nano_batch_, op.layer);
  const at::Tensor h = messages_.rows(op, /*second=*/true), parts = messages_.parts(op);
  chunks_.for_each([&](int64_t begin, int64_t count) {
    const std::shared_ptr<Llama::PreAttention> kept =
        l.pre.empty()
            ? phases_.projections_again(op.layer, h.narrow(0, begin, count), *rope_of(begin, count))
            : std::exchange(l.pre[begin / chunks_.at_once], nullptr);
    phases_.projections_backward(
        op.layer, *kept, *rope_of(begin, count), dq.narrow(0, begin, count),
        dk.narrow(0, begin, count), dv.narrow(0, begin, count), h.narrow(0, begin, count),
        op.leaves_weights ? &left_[op.layer] : nullptr, parts.narrow(0, begin, count));
  });
  l.pre.clear();
}

}  // namespace distca
