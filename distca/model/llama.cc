#include "distca/model/llama.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/base/normal.h"
#include "distca/comm/host_read.h"
#include "distca/comm/vector_functions.h"
#include "distca/model/llama_state.h"
#include "distca/model/operators.h"
#include "distca/model/rope_scaling.h"

namespace distca {
at::Tensor initial_weight(const Weight& weight, uint64_t seed) {
  const at::Tensor value = at::empty(weight.shape, at::kFloat);
  const std::span all(value.data_ptr<float>(), static_cast<size_t>(value.numel()));
  at::parallel_for(0, ceil_div(value.numel(), kNormalChunk), 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) draw_initial_values(weight, seed, chunk, all);
  });
  return part_of(weight.box, value).contiguous();
}

at::Tensor part_of(const std::vector<Range>& box, const at::Tensor& full) {
  at::Tensor part = full;
  for (size_t side = 0; side < box.size(); ++side)
    part = part.narrow(static_cast<int64_t>(side), box[side].begin, box[side].size());
  return part;
}

void Llama::set_frequencies(State& s) {
  const int64_t half = s.config.head_dim / 2;
  // In double: an angle of a position of 10^6 has no exact fraction left in fp32.
  const at::Tensor exponents = at::arange(half, at::kDouble) / static_cast<double>(half);
  s.frequencies = at::pow(s.config.rope_theta, -exponents);
  const RopeScaling scaling = parse_rope_scaling(s.config.rope_parameters, "model.rope_parameters");
  s.rope_factor = scaling.apply({s.frequencies.data_ptr<double>(), static_cast<size_t>(half)},
                                s.config.rope_theta);
  s.frequencies = upload(s.frequencies, s.device);
}

Llama::Llama(const LlamaConfig& config, uint64_t seed, int cuda_device, MainParams main_params)
    : Llama(config, whole_model(config), seed, cuda_device, main_params) {}

Llama::Llama(const LlamaConfig& config, const Stage& stage, uint64_t seed, int cuda_device,
             MainParams main_params)
    : state_(std::make_unique<State>(config, stage, cuda_device)) {
  config.check();
  settle_vector_functions();
  State& s = *state_;
  s.weights = weight_table(config, stage);
  const WeightOffsets offsets = parameter_offsets(config, stage, main_params);
  s.storage = at::zeros({offsets.bytes}, at::dtype(at::kByte).device(s.device));
  for (size_t i = 0; i < s.weights.size(); ++i) {
    const Weight& weight = s.weights[i];
    const bool in_compute = main_params == MainParams::kElsewhere && weight.is_matrix();
    const at::Tensor parameter =
        s.storage.narrow(0, offsets.begins[i], weight.numel() * offsets.element_bytes[i])
            .view(in_compute ? s.compute : s.main_param)
            .view(weight.held_shape());
    parameter.copy_(initial_weight(weight, seed));
    s.parameters.push_back(parameter);
  }
  set_frequencies(s);
  // The table's order: embedding, the weights of each layer, last norm, head.
  auto next = s.parameters.begin();
  // Single rows of the embedding are cast when they are looked up.
  if (stage.is_first()) s.embedding = *next++;
  for (auto layer = static_cast<int>(stage.layers.begin); layer < stage.layers.end; ++layer) {
    LayerWeights w;
    const auto take = [&](std::initializer_list<Matrix*> matrices) {
      for (Matrix* const matrix : matrices) *matrix = s.matrix(*next++);
    };
    w.input_norm = *next++;
    take({&w.q, &w.k, &w.v});
    w.biases.resize(config.has_qkv_bias() ? 3 : 0);
    for (at::Tensor& bias : w.biases) bias = *next++;
    if (config.has_qk_norm()) {
      w.q_norm = *next++;
      w.k_norm = *next++;
    }
    take({&w.o});
    w.post_norm = *next++;
    take({&w.gate, &w.up, &w.down});
    s.layers.push_back(std::move(w));
  }
  if (stage.is_last()) {
    s.final_norm = *next++;
    const bool has_embedding = config.tie_word_embeddings && stage.is_first();
    s.head = s.matrix(has_embedding ? s.embedding : *next++);
  }
  DISTCA_CHECK(next == s.parameters.end(), "the weight table has other weights than a Llama");
}

Llama::~Llama() = default;

const LlamaConfig& Llama::config() const { return state_->config; }
const Stage& Llama::stage() const { return state_->stage; }
const std::vector<Weight>& Llama::weights() const { return state_->weights; }
const std::vector<at::Tensor>& Llama::parameters() const { return state_->parameters; }
const at::Tensor& Llama::storage() const { return state_->storage; }

void Llama::refresh_copies() const {
  for (const Matrix& copy : state_->copies) copy.used.copy_(copy.parameter);
}

int64_t Llama::copy_bytes() const {
  int64_t bytes = 0;
  for (const Matrix& copy : state_->copies) bytes += static_cast<int64_t>(copy.used.nbytes());
  return bytes;
}

std::shared_ptr<const Llama::Rope> Llama::rope(const at::Tensor& positions) const {
  const State& s = *state_;
  const at::Tensor angles = positions.to(at::kDouble).unsqueeze(1) * s.frequencies.unsqueeze(0);
  const auto table = [&](at::Tensor values) {  // rounded once
    return values.mul_(s.rope_factor).to(s.main_param).unsqueeze(1);
  };
  const at::Tensor cosines = table(angles.cos()), sines = table(angles.sin());
  return std::make_shared<Rope>(
      Rope{.cosines = at::cat({cosines, cosines}, -1), .sines = at::cat({-sines, sines}, -1)});
}

std::shared_ptr<const Llama::Rope> Llama::part_of(const Rope& rope, int64_t begin,
                                                  int64_t count) const {
  return std::make_shared<Rope>(rope.part(begin, count));
}

at::Tensor Llama::embed(const at::Tensor& ids) const {
  return at::embedding(state_->embedding, ids).to(state_->compute);
}

std::shared_ptr<const Llama::Occurrences> Llama::occurrences(std::span<const int64_t> ids) const {
  std::vector<int64_t> tokens(ids.begin(), ids.end()), places(ids.size());
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (size_t i = 0; i < ids.size(); ++i)
    places[i] = std::ranges::lower_bound(tokens, ids[i]) - tokens.begin();
  return std::make_shared<Occurrences>(
      Occurrences{.tokens = upload(at::tensor(tokens, at::kLong), state_->device),
                  .places = upload(at::tensor(places, at::kLong), state_->device)});
}

void Llama::embed_backward(const Occurrences& ids, const at::Tensor& d_x) const {
  if (ids.tokens.numel() == 0) return;
  const State& s = *state_;
  // Summed for the tokens that occur, then added once to each: a table of the vocabulary's size for
  // every nano-batch would be mostly zeros.
  const at::Tensor rows =
      at::embedding_dense_backward(d_x.to(s.main_param), ids.places, ids.tokens.numel(),
                                   /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
  at::Tensor& sum = s.embedding.mutable_grad();
  if (!sum.defined()) sum = at::zeros_like(s.embedding, s.main_param);
  sum.index_add_(0, ids.tokens, rows);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> Llama::State::place(
    const LayerWeights& w, const std::vector<at::Tensor>& rows, const Rope& rope,
    PreAttention* left) const {
  const auto heads = [&](size_t i) {
    return rows[i].view({rows[i].size(0), rows[i].size(1) / config.head_dim, config.head_dim});
  };
  if (!config.has_qk_norm()) return {rotate(heads(0), rope), rotate(heads(1), rope), heads(2)};
  left->q = heads(0);
  left->k = heads(1);
  return {norm_rotate(left->q, w.q_norm, config.rms_norm_eps, rope, &left->q_factors),
          norm_rotate(left->k, w.k_norm, config.rms_norm_eps, rope, &left->k_factors), heads(2)};
}

void Llama::pre_attention(int layer, const at::Tensor& x, const Rope& rope, at::Tensor* q,
                          at::Tensor* k, at::Tensor* v, Keep keep,
                          std::shared_ptr<PreAttention>* kept) const {
  const State& s = *state_;
  const LayerWeights& w = s.layer(layer);
  PreAttention left;
  const std::vector<at::Tensor> rows =
      norm_linear(x, w.input_norm, s.config.rms_norm_eps, {w.q.used, w.k.used, w.v.used}, w.biases,
                  keep, kept != nullptr ? &left.norm : nullptr);
  std::tie(*q, *k, *v) = s.place(w, rows, rope, &left);
  if (kept != nullptr) *kept = std::make_shared<PreAttention>(std::move(left));
}

std::vector<at::Tensor> Llama::State::unplace(const LayerWeights& w, const PreAttention& kept,
                                              const Rope& rope, const at::Tensor& d_q,
                                              const at::Tensor& d_k, const at::Tensor& d_v,
                                              bool is_left) const {
  const auto unplaced = [&](const at::Tensor& d_y, const at::Tensor& norm, const at::Tensor& of,
                            const at::Tensor& factors) {
    if (!norm.defined()) return rotate(d_y, rope, /*direction=*/-1);
    const auto [d_x, d_norm] = norm_rotate_backward(d_y, of, norm, factors, rope);
    add(norm, d_norm);
    return d_x;
  };
  std::vector<at::Tensor> d_rows = {flat(unplaced(d_q, w.q_norm, kept.q, kept.q_factors)),
                                    flat(unplaced(d_k, w.k_norm, kept.k, kept.k_factors)),
                                    flat(d_v)};
  // On a device, the gradients by Q, K and V are pieces of one tensor, all of which would be kept.
  if (is_left && !d_v.device().is_cpu()) d_rows[2] = d_rows[2].clone();
  return d_rows;
}

void Llama::State::add_projections(const LayerWeights& w, const std::vector<at::Tensor>& d_rows,
                                   const at::Tensor& h,
                                   std::shared_ptr<LeftGradients>* left) const {
  const Matrix* const matrices[] = {&w.q, &w.k, &w.v};
  for (size_t i = 0; i < d_rows.size(); ++i) {
    add_product(*matrices[i], d_rows[i], h, left);
    if (!w.biases.empty()) add(w.biases[i], bias_gradient(d_rows[i], main_param));
  }
}

at::Tensor Llama::pre_attention_backward(int layer, const at::Tensor& x, const Rope& rope,
                                         const PreAttention& kept, const at::Tensor& d_q,
                                         const at::Tensor& d_k, const at::Tensor& d_v,
                                         std::shared_ptr<LeftGradients>* left) const {
  const State& s = *state_;
  const LayerWeights& w = s.layer(layer);
  const std::vector<at::Tensor> d_rows =
      s.unplace(w, kept, rope, d_q, d_k, d_v, /*is_left=*/left != nullptr);
  s.add_projections(w, d_rows, kept.norm.again(x, w.input_norm, s.config.rms_norm_eps, s.compute),
                    left);
  const auto [d_x, d_norm] =
      norm_linear_backward(kept.norm, x, w.input_norm, {w.q.used, w.k.used, w.v.used}, d_rows);
  s.add(w.input_norm, d_norm);
  return d_x;
}

Llama::PostAttention Llama::State::post_attention(int layer, const at::Tensor& x,
                                                  const at::Tensor& o, Keep keep) const {
  const LayerWeights& w = this->layer(layer);
  PostAttention left;
  left.after_attention = x + at::linear(flat(o), w.o.used);
  const std::vector<at::Tensor> inner =
      norm_linear(left.after_attention, w.post_norm, config.rms_norm_eps, {w.gate.used, w.up.used},
                  {}, keep, &left.norm);
  left.gate = inner[0];
  left.up = inner[1];
  left.product = swiglu(left.gate, left.up);
  return left;
}

std::shared_ptr<Llama::PostAttention> Llama::post_attention_again(int layer, const at::Tensor& x,
                                                                  const at::Tensor& o) const {
  return std::make_shared<PostAttention>(state_->post_attention(layer, x, o, Keep::kProducts));
}

at::Tensor Llama::post_attention(int layer, const at::Tensor& x, const at::Tensor& o, Keep keep,
                                 std::shared_ptr<PostAttention>* kept) const {
  if (kept == nullptr) keep = Keep::kInputs;
  PostAttention left = state_->post_attention(layer, x, o, keep);
  const at::Tensor y =
      left.after_attention + at::linear(left.product, state_->layer(layer).down.used);
  if (keep == Keep::kInputs) left.product.reset();
  if (kept != nullptr) *kept = std::make_shared<PostAttention>(std::move(left));
  return y;
}

std::pair<at::Tensor, at::Tensor> Llama::State::inner_backward(
    const LayerWeights& w, PostAttention& kept, const at::Tensor& d_y,
    std::shared_ptr<LeftGradients>* left) const {
  at::Tensor d_gate = kept.product.defined() ? std::exchange(kept.product, at::Tensor())
                                             : swiglu(kept.gate, kept.up);
  add_product(w.down, d_y, d_gate, left);
  // It is still the product, whose values are needed no more unless they are left for later.
  if (left != nullptr) d_gate = at::empty_like(d_gate);
  at::Tensor d_up = d_y.mm(w.down.used);
  swiglu_backward(kept.gate, kept.up, d_gate, d_up);
  kept.gate.reset();
  kept.up.reset();
  return {std::move(d_gate), std::move(d_up)};
}

std::pair<at::Tensor, at::Tensor> Llama::post_attention_backward(
    int layer, const at::Tensor& o, PostAttention& kept, at::Tensor d_y,
    std::shared_ptr<LeftGradients>* left) const {
  const State& s = *state_;
  const LayerWeights& w = s.layer(layer);
  auto [d_gate, d_up] = s.inner_backward(w, kept, d_y, left);
  {
    const at::Tensor h =
        kept.norm.again(kept.after_attention, w.post_norm, s.config.rms_norm_eps, s.compute);
    s.add_product(w.gate, d_gate, h, left);
    s.add_product(w.up, d_up, h, left);
    kept.norm.rows.reset();
  }
  auto [d_after, d_norm] = norm_linear_backward(kept.norm, kept.after_attention, w.post_norm,
                                                {w.gate.used, w.up.used}, {d_gate, d_up});
  d_gate.reset();
  d_up.reset();
  s.add(w.post_norm, d_norm);
  kept = {};
  d_after.add_(d_y);  // by the residual
  d_y.reset();
  s.add_product(w.o, d_after, flat(o), left);
  at::Tensor d_o = d_after.mm(w.o.used).view(o.sizes());
  return {d_after, d_o};
}

void Llama::add_left(LeftGradients& left) const {
  for (LeftGradients::Product& product : left.products) {
    state_->add(product.parameter, matrix_gradient(product.d_y, product.rows));
    product = {};
  }
  left.products.clear();
}

at::Tensor Llama::logits(const at::Tensor& x) const {
  const State& s = *state_;
  return norm_linear(x, s.final_norm, s.config.rms_norm_eps, {s.head.used}, {}, Keep::kInputs,
                     nullptr)[0]
      .to(s.main_param);
}

at::Tensor Llama::chunk_losses(const at::Tensor& x, const at::Tensor& targets, int64_t chunk_tokens,
                               double scale, at::Tensor* d_x, at::Tensor* losses) const {
  const State& s = *state_;
  if (d_x != nullptr) *d_x = at::empty_like(x);
  if (losses != nullptr) *losses = at::empty({x.size(0)}, x.options().dtype(s.main_param));
  const int64_t chunks = ceil_div(x.size(0), chunk_tokens);
  const at::Tensor sums = at::empty({chunks}, x.options().dtype(s.main_param));
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * chunk_tokens, count = std::min(chunk_tokens, x.size(0) - begin);
    const at::Tensor rows = x.narrow(0, begin, count), aims = targets.narrow(0, begin, count);
    Normed norm;
    // The logits have no name: they go before backward, which does not read them.
    at::Tensor log_probabilities =
        at::log_softmax(norm_linear(rows, s.final_norm, s.config.rms_norm_eps, {s.head.used}, {},
                                    Keep::kProducts, d_x != nullptr ? &norm : nullptr)[0]
                            .to(s.main_param),
                        1);
    if (losses != nullptr)
      losses->narrow(0, begin, count)
          .copy_(at::nll_loss(log_probabilities, aims, {}, at::Reduction::None, kNoTarget));
    const auto [loss, total_weight] =
        at::nll_loss_forward(log_probabilities, aims, {}, at::Reduction::Sum, kNoTarget);
    sums[chunk].copy_(loss);
    if (d_x == nullptr) continue;
    at::Tensor d_logits = at::nll_loss_backward(at::full_like(loss, scale), log_probabilities, aims,
                                                {}, at::Reduction::Sum, kNoTarget, total_weight);
    d_logits = at::_log_softmax_backward_data(d_logits, log_probabilities, 1, s.main_param);
    log_probabilities.reset();
    d_logits = d_logits.to(s.compute);
    s.add_product(s.head, d_logits, norm.rows);
    norm.rows.reset();
    const auto [d_rows, d_norm] =
        norm_linear_backward(norm, rows, s.final_norm, {s.head.used}, {d_logits});
    s.add(s.final_norm, d_norm);
    d_x->narrow(0, begin, count).copy_(d_rows);
  }
  return sums;
}

}  // namespace distca
