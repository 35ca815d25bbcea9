#include <ATen/ATen.h>

#include "distca/train/nano_player.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "distca/base/error.h"
#include "distca/comm/host_read.h"
#include "distca/model/operators.h"

namespace distca {

NanoPlayer::NanoPlayer(const Llama& model, StepAttention& attention, int nano_batch,
                       const LocalTokens& tokens, const NanoOptions& options)
    : model_(model),
      attention_(attention),
      nano_batch_(nano_batch),
      options_(options),
      chunks_(options.chunks(static_cast<int64_t>(tokens.ids.size()))),
      left_(model.config().num_hidden_layers) {
  DISTCA_CHECK(!options.by_chunks() || options.chunk_rows > 0, "chunks of {} rows",
               options.chunk_rows);
  const at::Device device = model.parameters()[0].device();
  const auto tensor = [&](const std::vector<int64_t>& values) {
    return upload(at::tensor(values, at::kLong), device);
  };
  ids_ = tensor(tokens.ids);
  targets_ = tensor(tokens.targets);
  positions_ = tensor(tokens.positions);
}

bool NanoPlayer::keeps() const { return at::GradMode::is_enabled() && !options_.by_chunks(); }
Keep NanoPlayer::keep() const {
  return options_.recompute == Recompute::kNone ? Keep::kProducts : Keep::kInputs;
}

void NanoPlayer::play(const Op& op) {
  if (op.pass == Pass::kForward) return play_forward(op);
  if (op.kind == OpKind::kLoss) return;  // done in forward
  if (op.kind != OpKind::kWeightGradient) return play_backward(op);
  DISTCA_CHECK(left_[op.layer] != nullptr, "backward of layer {} has left nothing", op.layer);
  model_.add_left(*std::exchange(left_[op.layer], nullptr));
}

bool NanoPlayer::is_done() const {
  return is_over_ && std::ranges::none_of(left_, [](const auto& left) { return left != nullptr; });
}

void NanoPlayer::begin(const at::Tensor& x) {
  const int64_t rows = model_.stage().tensor.part(chunks_.rows).size();
  DISTCA_CHECK(x.size(0) == rows, "{} rows for {} tokens", x.size(0), rows);
  x_ = x;
  rope_ = model_.rope(positions_);
}

at::Tensor NanoPlayer::take_output() { return std::exchange(x_, at::Tensor()); }

at::Tensor NanoPlayer::take_gradient() {
  at::Tensor gradient = gradient_;
  end_backward();
  return gradient;
}

/// Weight gradients that are left need nothing of this.
void NanoPlayer::end_backward() {
  for (at::Tensor* const tensor : {&ids_, &targets_, &positions_, &gradient_}) tensor->reset();
  rope_.reset();
  is_over_ = true;
}

std::shared_ptr<const Llama::Rope> NanoPlayer::rope_of(int64_t begin, int64_t count) const {
  return count == chunks_.rows ? rope_ : model_.part_of(*rope_, begin, count);
}

NanoPlayer::Qkv NanoPlayer::qkv_of_all(int layer, const at::Tensor& rows,
                                       std::vector<Kept>* kept) const {
  Qkv all;
  chunks_.for_each([&](int64_t begin, int64_t count) {
    Qkv part;
    Kept of_chunk;
    qkv(layer, rows.narrow(0, begin, count), *rope_of(begin, count), part,
        kept != nullptr ? &of_chunk : nullptr);
    chunks_.put(all.q, part.q, begin);
    chunks_.put(all.k, part.k, begin);
    chunks_.put(all.v, part.v, begin);
    if (kept != nullptr) kept->push_back(std::move(of_chunk));
  });
  return all;
}

void NanoPlayer::drop_after_forward(int layer) {
  if (!at::GradMode::is_enabled()) {
    attention_.drop(nano_batch_, layer);
  } else if (options_.makes_qkv_again()) {
    attention_.drop_qkv(nano_batch_, layer);
  }
}

}  // namespace distca
