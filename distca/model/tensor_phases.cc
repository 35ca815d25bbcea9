#include <ATen/ATen.h>

#include "distca/model/tensor_phases.h"

#include <tuple>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/comm/host_read.h"
#include "distca/model/llama_state.h"

namespace distca {
namespace {

/// Rows that are left for later, of gathered ones: these lie where others will.
at::Tensor to_leave(const at::Tensor& gathered, const std::shared_ptr<Llama::LeftGradients>* left) {
  return left != nullptr ? gathered.clone(at::MemoryFormat::Contiguous) : gathered;
}

}  // namespace

struct TensorPhases::OwnIds {
  at::Tensor rows;                                // int64, in the R rows
  std::shared_ptr<const Llama::Occurrences> ids;  // numbered as the part of the embedding does
};

TensorPhases::TensorPhases(const Llama& model) : model_(model), state_(*model.state_) {
  const Stage& stage = model.stage();
  DISTCA_CHECK(!(stage.is_first() || stage.is_last()) || state_.own_tokens().size() > 0,
               "a vocabulary of {} over {} ranks", model.config().vocab_size, stage.tensor.size);
}

at::Tensor TensorPhases::embed_part(const at::Tensor& ids) const {
  const Range own = state_.own_tokens();
  const at::Tensor rows =
      at::embedding(state_.embedding, ids.clamp(own.begin, own.end - 1) - own.begin);
  const at::Tensor elsewhere = (ids < own.begin).logical_or_(ids >= own.end);
  return rows.to(state_.compute).masked_fill_(elsewhere.unsqueeze(1), 0);
}

std::shared_ptr<const TensorPhases::OwnIds> TensorPhases::own_ids(
    std::span<const int64_t> ids) const {
  const Range own = state_.own_tokens();
  std::vector<int64_t> rows, numbers;
  for (size_t row = 0; row < ids.size(); ++row) {
    if (!own.contains({ids[row], ids[row] + 1})) continue;
    rows.push_back(static_cast<int64_t>(row));
    numbers.push_back(ids[row] - own.begin);
  }
  return std::make_shared<OwnIds>(OwnIds{.rows = upload(at::tensor(rows, at::kLong), state_.device),
                                         .ids = model_.occurrences(numbers)});
}

void TensorPhases::embed_backward(const OwnIds& ids, const at::Tensor& d_x) const {
  model_.embed_backward(*ids.ids, d_x.index_select(0, ids.rows));
}

const at::Tensor& TensorPhases::norm_weight(int layer, Branch branch) const {
  const LayerWeights& w = state_.layer(layer);
  return branch == Branch::kAttention ? w.input_norm : w.post_norm;
}

at::Tensor TensorPhases::norm(int layer, Branch branch, const at::Tensor& x,
                              at::Tensor* factors) const {
  at::Tensor h;
  std::tie(h, *factors) =
      norm_rows(x, norm_weight(layer, branch), state_.config.rms_norm_eps, state_.compute);
  return h;
}

at::Tensor TensorPhases::norm_again(int layer, Branch branch, const at::Tensor& x,
                                    const at::Tensor& factors) const {
  const Normed normed{.factors = factors, .rows = {}};
  return normed.again(x, norm_weight(layer, branch), state_.config.rms_norm_eps, state_.compute);
}

at::Tensor TensorPhases::norm_backward(int layer, Branch branch, const at::Tensor& x,
                                       const at::Tensor& factors, const at::Tensor& d_h) const {
  const at::Tensor& weight = norm_weight(layer, branch);
  const auto [d_x, d_weight] = norm_rows_backward(d_h, x, weight, factors);
  state_.add(weight, d_weight);
  return d_x;
}

void TensorPhases::projections(int layer, const at::Tensor& h, const Llama::Rope& rope,
                               at::Tensor* q, at::Tensor* k, at::Tensor* v,
                               std::shared_ptr<Llama::PreAttention>* kept) const {
  const LayerWeights& w = state_.layer(layer);
  Llama::PreAttention left;
  const std::vector<at::Tensor> rows = products(h, {w.q.used, w.k.used, w.v.used}, w.biases);
  std::tie(*q, *k, *v) = state_.place(w, rows, rope, &left);
  if (kept != nullptr) *kept = std::make_shared<Llama::PreAttention>(std::move(left));
}

std::shared_ptr<Llama::PreAttention> TensorPhases::projections_again(
    int layer, const at::Tensor& h, const Llama::Rope& rope) const {
  auto kept = std::make_shared<Llama::PreAttention>();
  if (!state_.config.has_qk_norm()) return kept;  // nothing is left
  at::Tensor q, k, v;
  projections(layer, h, rope, &q, &k, &v, &kept);
  return kept;
}

void TensorPhases::projections_backward(int layer, const Llama::PreAttention& kept,
                                        const Llama::Rope& rope, const at::Tensor& d_q,
                                        const at::Tensor& d_k, const at::Tensor& d_v,
                                        const at::Tensor& h,
                                        std::shared_ptr<Llama::LeftGradients>* left,
                                        at::Tensor d_h_part) const {
  const LayerWeights& w = state_.layer(layer);
  const std::vector<at::Tensor> d_rows =
      state_.unplace(w, kept, rope, d_q, d_k, d_v, /*is_left=*/left != nullptr);
  state_.add_projections(w, d_rows, to_leave(h, left), left);
  sum_of_products(d_rows, {w.q.used, w.k.used, w.v.used}, d_h_part);
}

void TensorPhases::out_projection(int layer, const at::Tensor& o, at::Tensor y_part) const {
  sum_of_products({flat(o)}, {state_.layer(layer).o.used.t()}, y_part);
}

at::Tensor TensorPhases::out_projection_backward(
    int layer, const at::Tensor& o, const at::Tensor& d_y,
    std::shared_ptr<Llama::LeftGradients>* left) const {
  const LayerWeights& w = state_.layer(layer);
  state_.add_product(w.o, to_leave(d_y, left), flat(o), left);
  return d_y.mm(w.o.used).view(o.sizes());
}

std::shared_ptr<Llama::PostAttention> TensorPhases::mlp_again(int layer,
                                                              const at::Tensor& h) const {
  const LayerWeights& w = state_.layer(layer);
  auto inner = std::make_shared<Llama::PostAttention>();
  inner->gate = at::linear(h, w.gate.used);
  inner->up = at::linear(h, w.up.used);
  inner->product = swiglu(inner->gate, inner->up);
  return inner;
}

void TensorPhases::mlp(int layer, const at::Tensor& h, Keep keep,
                       std::shared_ptr<Llama::PostAttention>* kept, at::Tensor y_part) const {
  std::shared_ptr<Llama::PostAttention> inner = mlp_again(layer, h);
  sum_of_products({inner->product}, {state_.layer(layer).down.used.t()}, y_part);
  if (keep == Keep::kInputs) inner->product.reset();
  if (kept != nullptr) *kept = std::move(inner);
}

void TensorPhases::mlp_backward(int layer, Llama::PostAttention& kept, const at::Tensor& d_y,
                                const at::Tensor& h, std::shared_ptr<Llama::LeftGradients>* left,
                                at::Tensor d_h_part) const {
  const LayerWeights& w = state_.layer(layer);
  const auto [d_gate, d_up] = state_.inner_backward(w, kept, to_leave(d_y, left), left);
  const at::Tensor rows = to_leave(h, left);
  state_.add_product(w.gate, d_gate, rows, left);
  state_.add_product(w.up, d_up, rows, left);
  sum_of_products({d_gate, d_up}, {w.gate.used, w.up.used}, d_h_part);
}

}  // namespace distca
