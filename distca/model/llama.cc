#include "distca/model/llama.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/base/normal.h"
#include "distca/comm/aten_types.h"
#include "distca/comm/host_read.h"
#include "distca/model/rope_scaling.h"
#include "distca/program/program.h"

namespace distca {
namespace {

/// Weights of one layer; shapes as in Hugging Face: [out, in].
struct LayerWeights {
  at::Tensor input_norm;           // [C]
  at::Tensor q, k, v;              // [H * D, C], [G * D, C], [G * D, C]
  std::vector<at::Tensor> biases;  // [H * D], [G * D], [G * D] of q, k, v; Qwen2 alone
  at::Tensor q_norm, k_norm;       // [D]; Qwen3 alone
  at::Tensor o;                    // [C, H * D]
  at::Tensor post_norm;            // [C]
  at::Tensor gate, up, down;       // [I, C], [I, C], [C, I]
};

}  // namespace

struct Llama::Rope {
  at::Tensor cosines;  // [T, 1, D], as rotate() wants them
  at::Tensor sines;
};

struct Llama::Occurrences {
  at::Tensor tokens;  // int64, ascending
  at::Tensor places;  // [T] int64, in `tokens`
};

struct Llama::State {
  LlamaConfig config;
  Stage stage;
  at::ScalarType compute;     // type in which phases compute
  at::ScalarType main_param;  // type of the main params
  at::Device device;
  std::vector<LayerWeights> layers;  // layers of the stage
  at::Tensor embedding;              // [V, C]: the parameter; only on the first stage
  at::Tensor final_norm;             // [C]; this and the head only on the last stage
  at::Tensor head;                   // [V, C]
  std::vector<Weight> weights;
  std::vector<at::Tensor> parameters;
  /// A matrix in the compute type, which phases use in its place.
  struct Copy {
    at::Tensor parameter, leaf;
    int layer;
  };
  std::vector<Copy> copies;
  at::Tensor storage;      // memory of all parameters
  at::Tensor frequencies;  // [D / 2] fp64, of RoPE: radians a position
  double rope_factor = 1;  // factor of its cosines and sines

  State(const LlamaConfig& config_in, const Stage& stage_in, int cuda_device)
      : config(config_in),
        stage(stage_in),
        compute(aten_type(config.dtype)),
        main_param(compute == at::kDouble ? at::kDouble : at::kFloat),
        device(aten_device(cuda_device)) {}

  const LayerWeights& layer(int index) const {
    DISTCA_CHECK(stage.layers.contains({index, index + 1}), "layer {} is not of stage {}", index,
                 stage.index);
    return layers[index - stage.layers.begin];
  }
  /// Returns the tensor that phases use in place of a parameter. Norms keep the parameters' type.
  at::Tensor used(const at::Tensor& parameter, int layer) {
    if (compute == main_param || parameter.dim() == 1) return parameter;
    const at::NoGradGuard no_grad;
    // Where main params are elsewhere, both share their memory, but not their gradients' type.
    copies.push_back({.parameter = parameter,
                      .leaf = parameter.detach().to(compute).set_requires_grad(true),
                      .layer = layer});
    return copies.back().leaf;
  }
};

at::Tensor initial_weight(const Weight& weight, uint64_t seed) {
  const at::Tensor value = at::empty(weight.shape, at::kFloat);
  const std::span all(value.data_ptr<float>(), static_cast<size_t>(value.numel()));
  at::parallel_for(0, ceil_div(value.numel(), kNormalChunk), 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) draw_initial_values(weight, seed, chunk, all);
  });
  return value;
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
            .view(weight.shape);
    parameter.copy_(initial_weight(weight, seed));
    s.parameters.push_back(parameter.detach().set_requires_grad(true));
  }
  set_frequencies(s);
  // The table's order: embedding, the weights of each layer, last norm, head.
  auto next = s.parameters.begin();
  // Single rows of the embedding are cast when they are looked up.
  if (stage.is_first()) s.embedding = *next++;
  for (auto layer = static_cast<int>(stage.layers.begin); layer < stage.layers.end; ++layer) {
    LayerWeights w;
    const auto take = [&](std::initializer_list<at::Tensor*> weights) {
      for (at::Tensor* const weight : weights) *weight = s.used(*next++, layer);
    };
    take({&w.input_norm, &w.q, &w.k, &w.v});
    w.biases.resize(config.has_qkv_bias() ? 3 : 0);
    for (at::Tensor& bias : w.biases) take({&bias});
    if (config.has_qk_norm()) take({&w.q_norm, &w.k_norm});
    take({&w.o, &w.post_norm, &w.gate, &w.up, &w.down});
    s.layers.push_back(std::move(w));
  }
  if (stage.is_last()) {
    s.final_norm = *next++;
    const bool has_embedding = config.tie_word_embeddings && stage.is_first();
    s.head = s.used(has_embedding ? s.embedding : *next++, kAfterLayers);
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
  const at::NoGradGuard no_grad;
  for (State::Copy& copy : state_->copies) {
    if (!copy.leaf.is_alias_of(copy.parameter)) copy.leaf.copy_(copy.parameter);
  }
}

int64_t Llama::copy_bytes() const {
  int64_t bytes = 0;
  for (const State::Copy& copy : state_->copies) {
    if (!copy.leaf.is_alias_of(copy.parameter)) bytes += static_cast<int64_t>(copy.leaf.nbytes());
  }
  return bytes;
}

namespace {

/// A parameter's .grad, which autograd may not have made yet.
at::Tensor& gradient_of(at::Tensor& parameter, at::ScalarType type) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) gradient = at::zeros_like(parameter.detach(), type);
  return gradient;
}

}  // namespace

void Llama::collect_gradients(int layer) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums, gradients;
  for (State::Copy& copy : state_->copies) {
    if (copy.layer != layer || !copy.leaf.grad().defined()) continue;
    sums.push_back(gradient_of(copy.parameter, state_->main_param));
    gradients.push_back(std::exchange(copy.leaf.mutable_grad(), at::Tensor()));
  }
  if (!sums.empty()) at::_foreach_add_(sums, gradients);
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
  return std::make_shared<Rope>(Rope{.cosines = rope.cosines.narrow(0, begin, count),
                                     .sines = rope.sines.narrow(0, begin, count)});
}

at::Tensor Llama::embed(const at::Tensor& ids) const {
  return at::embedding(state_->embedding.detach(), ids).to(state_->compute);
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
  const at::NoGradGuard no_grad;
  // Summed for the tokens that occur, then added once to each: a table of the vocabulary's size for
  // every nano-batch would be mostly zeros.
  const at::Tensor rows =
      at::embedding_dense_backward(d_x.to(state_->main_param), ids.places, ids.tokens.numel(),
                                   /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
  gradient_of(state_->embedding, state_->main_param).index_add_(0, ids.tokens, rows);
}

void Llama::pre_attention(int layer, const at::Tensor& x, const Rope& rope, at::Tensor* q,
                          at::Tensor* k, at::Tensor* v, Keep keep) const {
  const State& s = *state_;
  const LayerWeights& w = s.layer(layer);
  const int64_t tokens = x.size(0), dim = s.config.head_dim;
  const std::vector<at::Tensor> qkv =
      norm_linear(x, w.input_norm, s.config.rms_norm_eps, {w.q, w.k, w.v}, keep, w.biases);
  const auto placed = [&](const at::Tensor& rows, int64_t heads, const at::Tensor& norm) {
    const at::Tensor x_heads = rows.view({tokens, heads, dim});
    if (!norm.defined()) return rotate(x_heads, rope.cosines, rope.sines);
    return norm_rotate(x_heads, norm, s.config.rms_norm_eps, rope.cosines, rope.sines);
  };
  *q = placed(qkv[0], s.config.num_attention_heads, w.q_norm);
  *k = placed(qkv[1], s.config.num_key_value_heads, w.k_norm);
  *v = qkv[2].view({tokens, s.config.num_key_value_heads, dim});
}

at::Tensor Llama::post_attention(int layer, const at::Tensor& x, const at::Tensor& o,
                                 Keep keep) const {
  const State& s = *state_;
  const LayerWeights& w = s.layer(layer);
  const at::Tensor after_attention =
      x + at::linear(o.reshape({x.size(0), s.config.num_attention_heads * s.config.head_dim}), w.o);
  const std::vector<at::Tensor> inner =
      norm_linear(after_attention, w.post_norm, s.config.rms_norm_eps, {w.gate, w.up}, keep);
  return after_attention + swiglu_linear(inner[0], inner[1], w.down, keep);
}

at::Tensor Llama::logits(const at::Tensor& x) const {
  const State& s = *state_;
  return norm_linear(x, s.final_norm, s.config.rms_norm_eps, {s.head}, Keep::kProducts)[0].to(
      s.main_param);
}

at::Tensor Llama::chunk_losses(const at::Tensor& x, const at::Tensor& targets, int64_t chunk_tokens,
                               double scale, at::Tensor* d_x, at::Tensor* losses) const {
  const c10::AutoGradMode grad_mode(d_x != nullptr);
  if (d_x != nullptr) *d_x = at::empty_like(x);
  if (losses != nullptr) *losses = at::empty({x.size(0)}, x.options().dtype(state_->main_param));
  const int64_t chunks = ceil_div(x.size(0), chunk_tokens);
  const at::Tensor sums = at::empty({chunks}, x.options().dtype(state_->main_param));
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * chunk_tokens, count = std::min(chunk_tokens, x.size(0) - begin);
    const at::Tensor rows = x.narrow(0, begin, count).detach().requires_grad_(d_x != nullptr);
    // The logits have no name: they go before backward, which does not read them.
    const auto summed_loss = [&] {  // nor have log-probabilities: backward frees them
      const at::Tensor log_probabilities = at::log_softmax(logits(rows), 1);
      const auto cross_entropy = [&](at::Reduction::Reduction how) {
        return at::nll_loss(log_probabilities, targets.narrow(0, begin, count), {}, how,
                            /*ignore_index=*/-100);
      };
      if (losses != nullptr)
        losses->narrow(0, begin, count).copy_(cross_entropy(at::Reduction::None));
      return cross_entropy(at::Reduction::Sum);
    };
    const at::Tensor loss = summed_loss();
    sums[chunk].copy_(loss.detach());
    if (d_x == nullptr) continue;
    torch::autograd::backward({loss}, {at::full_like(loss, scale)});
    d_x->narrow(0, begin, count).copy_(rows.grad());
    collect_gradients(kAfterLayers);
  }
  return sums;
}

}  // namespace distca
