#include <ATen/ATen.h>

#include "distca/train/tensor_nano_phases.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/comm/host_read.h"
#include "distca/model/operators.h"

namespace distca {

TensorNanoPhases::TensorNanoPhases(const Llama& model, StepAttention& attention,
                                   TensorMessages& messages, int nano_batch,
                                   const LocalTokens& tokens, const NanoOptions& options)
    : model_(model),
      phases_(model),
      attention_(attention),
      messages_(messages),
      nano_batch_(nano_batch),
      options_(options),
      chunks_(options.chunks(static_cast<int64_t>(tokens.ids.size()))),
      layers_(model.config().num_hidden_layers) {
  const at::Device device = model.parameters()[0].device();
  const auto tensor = [&](const std::vector<int64_t>& values) {
    return upload(at::tensor(values, at::kLong), device);
  };
  ids_ = tensor(tokens.ids);
  targets_ = tensor(tokens.targets);
  positions_ = tensor(tokens.positions);
  if (at::GradMode::is_enabled() && model.stage().is_first())
    own_ids_ = phases_.own_ids(tokens.ids);
}

bool TensorNanoPhases::keeps() const { return at::GradMode::is_enabled() && !options_.by_chunks(); }
Keep TensorNanoPhases::keep() const {
  return options_.recompute == Recompute::kNone ? Keep::kProducts : Keep::kInputs;
}

std::shared_ptr<const Llama::Rope> TensorNanoPhases::rope_of(int64_t begin, int64_t count) const {
  return count == chunks_.rows ? rope_ : model_.part_of(*rope_, begin, count);
}

void TensorNanoPhases::begin(const at::Tensor& x) {
  x_ = x;
  rope_ = model_.rope(positions_);
}
at::Tensor TensorNanoPhases::take_output() { return std::exchange(x_, at::Tensor()); }
void TensorNanoPhases::begin_backward(const at::Tensor& d_output) { gradient_ = d_output; }
at::Tensor TensorNanoPhases::take_gradient() {
  at::Tensor gradient = gradient_;
  end_backward();
  return gradient;
}

bool TensorNanoPhases::is_done() const {
  return is_over_ &&
         std::ranges::none_of(layers_, [](const Layer& l) { return l.left != nullptr; });
}

/// Weight gradients that are left need nothing of this.
void TensorNanoPhases::end_backward() {
  for (at::Tensor* const tensor : {&ids_, &targets_, &positions_, &gradient_, &d_normed_})
    tensor->reset();
  own_ids_.reset();
  rope_.reset();
  is_over_ = true;
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

void TensorNanoPhases::play(const Op& op) {
  op.pass == Pass::kForward ? play_forward(op) : play_backward(op);
}

void TensorNanoPhases::play_forward(const Op& op) {
  if (op.kind == OpKind::kEmbed) {
    messages_.parts(op).copy_(phases_.embed_part(ids_));
    return;
  }
  Layer& l = layers_[op.layer];
  switch (op.kind) {
    case OpKind::kAttentionNorm:
      l.x = std::exchange(x_, at::Tensor());
      normed_ = phases_.norm(op.layer, Branch::kAttention, l.x, &l.attention_factors);
      break;
    case OpKind::kPreAttention:
      pre_attention(op);
      break;
    case OpKind::kOutProjection: {
      phases_.out_projection(op.layer, attention_.o(nano_batch_, op.layer), messages_.parts(op));
      if (!at::GradMode::is_enabled()) {
        attention_.drop(nano_batch_, op.layer);
      } else if (options_.by_chunks() && !options_.keys_travel_again) {
        attention_.drop_qkv(nano_batch_, op.layer);
      }
      break;
    }
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
    phases_.embed_backward(*own_ids_, messages_.rows(op));
    return end_backward();
  }
  if (op.kind == OpKind::kLoss) return;  // done in forward
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
      l = {.left = std::move(l.left)};
      break;
    case OpKind::kWeightGradient:
      DISTCA_CHECK(l.left != nullptr, "backward of layer {} has left nothing", op.layer);
      model_.add_left(*std::exchange(l.left, nullptr));
      break;
    default:
      DISTCA_CHECK(false, "no backward operation: {}", describe(op));
  }
}

TensorNanoPhases::Qkv TensorNanoPhases::projections(
    int layer, const at::Tensor& h, std::vector<std::shared_ptr<Llama::PreAttention>>* kept) const {
  Qkv all;
  chunks_.for_each([&](int64_t begin, int64_t count) {
    Qkv part;
    std::shared_ptr<Llama::PreAttention> of_chunk;
    phases_.projections(layer, h.narrow(0, begin, count), *rope_of(begin, count), &part.q, &part.k,
                        &part.v, kept != nullptr ? &of_chunk : nullptr);
    chunks_.put(all.q, part.q, begin);
    chunks_.put(all.k, part.k, begin);
    chunks_.put(all.v, part.v, begin);
    if (kept != nullptr) kept->push_back(std::move(of_chunk));
  });
  return all;
}

void TensorNanoPhases::pre_attention(const Op& op) {
  const Qkv all =
      projections(op.layer, messages_.rows(op), keeps() ? &layers_[op.layer].pre : nullptr);
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

at::Tensor TensorNanoPhases::loss() {
  const at::Tensor sums = phases_.chunk_losses(messages_, x_, targets_, options_.loss_rows,
                                               options_.loss_scale, &gradient_);
  x_.reset();
  return reports() ? sums : at::Tensor();
}

at::Tensor TensorNanoPhases::evaluated_loss(at::Tensor* of_tokens) {
  const at::Tensor sums = phases_.chunk_losses(messages_, x_, targets_, options_.loss_rows,
                                               /*scale=*/1, /*d_x=*/nullptr, of_tokens);
  x_.reset();
  return reports() ? sums : at::Tensor();
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
                         op.leaves_weights ? &l.left : nullptr, parts.narrow(0, begin, count));
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
                                                op.leaves_weights ? &l.left : nullptr),
                begin);
  });
  if (options_.by_chunks() && !options_.keys_travel_again) {
    const Qkv all = projections(op.layer, messages_.rows(op, /*second=*/true), &l.pre);
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
        op.leaves_weights ? &l.left : nullptr, parts.narrow(0, begin, count));
  });
  l.pre.clear();
}

}  // namespace distca
