#include "distca/model/llama.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/integers.h"
#include "distca/base/normal.h"
#include "distca/comm/aten_types.h"

namespace distca {
namespace {

/// Weights of one layer; shapes as in Hugging Face: [out, in].
struct LayerWeights {
  at::Tensor input_norm;      // [C]
  at::Tensor q, k, v;         // [H * D, C], [G * D, C], [G * D, C]
  at::Tensor o;               // [C, H * D]
  at::Tensor post_norm;       // [C]
  at::Tensor gate, up, down;  // [I, C], [I, C], [C, I]
};

}  // namespace

struct Llama::Rope {
  at::Tensor cosines;  // [T, 1, D / 2]
  at::Tensor sines;
};

struct Llama::State {
  LlamaConfig config;
  at::ScalarType compute;  // of the phases
  at::ScalarType master;   // of the parameters
  at::Device device;
  std::vector<LayerWeights> layers;
  at::Tensor embedding;   // [V, C]
  at::Tensor final_norm;  // [C]
  at::Tensor head;        // [V, C]; the embedding itself when tied
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;

  State(const LlamaConfig& config_in, int cuda_device)
      : config(config_in),
        compute(aten_type(config.dtype)),
        master(compute == at::kDouble ? at::kDouble : at::kFloat),
        device(aten_device(cuda_device)) {}

  at::Tensor add_parameter(const std::string& name, at::Tensor value) {
    at::Tensor parameter = value.to(device, master).set_requires_grad(true);
    names.push_back(name);
    parameters.push_back(parameter);
    return parameter;
  }
  /// Normal weights drawn in fp32 on the CPU from (seed, name): the same for every rank, machine,
  /// device, dtype and number of threads.
  at::Tensor add_matrix(const std::string& name, int64_t rows, int64_t columns, double std_dev,
                        uint64_t seed) {
    Fnv1a64 hash;
    hash.add(name);
    const at::Tensor value = at::empty({rows, columns}, at::kFloat);
    const std::span all(value.data_ptr<float>(), static_cast<size_t>(value.numel()));
    at::parallel_for(0, ceil_div(value.numel(), kNormalChunk), 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const auto at = static_cast<size_t>(block * kNormalChunk);
        const auto count = std::min(static_cast<size_t>(kNormalChunk), all.size() - at);
        draw_normal_chunk(seed ^ hash.value(), static_cast<uint64_t>(block), std_dev,
                          all.subspan(at, count));
      }
    });
    return add_parameter(name, value);
  }
  at::Tensor add_norm(const std::string& name) {
    return add_parameter(name, at::ones({config.hidden_size}, at::kFloat));
  }
  at::Tensor cast(const at::Tensor& weight) const { return weight.to(compute); }
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const {
    // The norm's own arithmetic is at least fp32, as in Hugging Face.
    return at::rms_norm(x.to(master), {config.hidden_size}, weight, config.rms_norm_eps)
        .to(compute);
  }
};

Llama::Llama(const LlamaConfig& config, uint64_t seed, int cuda_device)
    : state_(std::make_unique<State>(config, cuda_device)) {
  config.check();
  State& s = *state_;
  const int64_t hidden = config.hidden_size;
  const int64_t q = config.num_attention_heads * config.head_dim,
                kv = config.num_key_value_heads * config.head_dim;
  const double std_dev = config.initializer_range;
  // Matrices that write to the residual stream are scaled down with depth, as in GPT-2.
  const double residual_std =
      std_dev / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  s.embedding = s.add_matrix("model.embed_tokens.weight", config.vocab_size, hidden, std_dev, seed);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    LayerWeights w;
    w.input_norm = s.add_norm(layer + "input_layernorm.weight");
    w.q = s.add_matrix(layer + "self_attn.q_proj.weight", q, hidden, std_dev, seed);
    w.k = s.add_matrix(layer + "self_attn.k_proj.weight", kv, hidden, std_dev, seed);
    w.v = s.add_matrix(layer + "self_attn.v_proj.weight", kv, hidden, std_dev, seed);
    w.o = s.add_matrix(layer + "self_attn.o_proj.weight", hidden, q, residual_std, seed);
    w.post_norm = s.add_norm(layer + "post_attention_layernorm.weight");
    w.gate = s.add_matrix(layer + "mlp.gate_proj.weight", config.intermediate_size, hidden, std_dev,
                          seed);
    w.up =
        s.add_matrix(layer + "mlp.up_proj.weight", config.intermediate_size, hidden, std_dev, seed);
    w.down = s.add_matrix(layer + "mlp.down_proj.weight", hidden, config.intermediate_size,
                          residual_std, seed);
    s.layers.push_back(std::move(w));
  }
  s.final_norm = s.add_norm("model.norm.weight");
  s.head = config.tie_word_embeddings
               ? s.embedding
               : s.add_matrix("lm_head.weight", config.vocab_size, hidden, std_dev, seed);
}

Llama::~Llama() = default;

const LlamaConfig& Llama::config() const { return state_->config; }
const std::vector<std::string>& Llama::parameter_names() const { return state_->names; }
const std::vector<at::Tensor>& Llama::parameters() const { return state_->parameters; }

std::shared_ptr<const Llama::Rope> Llama::rope(const at::Tensor& positions) const {
  const State& s = *state_;
  const int64_t half = s.config.head_dim / 2;
  // Angles in double: a position of 10^6 has no exact fraction left in fp32.
  const at::Tensor exponents =
      at::arange(half, at::dtype(at::kDouble).device(s.device)) / static_cast<double>(half);
  const at::Tensor frequencies = at::pow(s.config.rope_theta, -exponents);
  const at::Tensor angles = positions.to(at::kDouble).unsqueeze(1) * frequencies.unsqueeze(0);
  return std::make_shared<Rope>(Rope{.cosines = angles.cos().to(s.master).unsqueeze(1),
                                     .sines = angles.sin().to(s.master).unsqueeze(1)});
}

namespace {

/// x [T, heads, D], Hugging Face's half-split form.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const at::Tensor wide = x.to(cosines.scalar_type());
  const int64_t half = x.size(-1) / 2;
  const at::Tensor first = wide.narrow(-1, 0, half), second = wide.narrow(-1, half, half);
  return at::cat({first * cosines - second * sines, second * cosines + first * sines}, -1)
      .to(x.scalar_type());
}

}  // namespace

at::Tensor Llama::embed(const at::Tensor& ids) const {
  return at::embedding(state_->embedding, ids).to(state_->compute);
}

void Llama::pre_attention(int layer, const at::Tensor& x, const Rope& rope, at::Tensor* q,
                          at::Tensor* k, at::Tensor* v) const {
  const State& s = *state_;
  const LayerWeights& w = s.layers[layer];
  const int64_t tokens = x.size(0), dim = s.config.head_dim;
  const at::Tensor h = s.norm(x, w.input_norm);
  *q = rotate(at::linear(h, s.cast(w.q)).view({tokens, s.config.num_attention_heads, dim}),
              rope.cosines, rope.sines);
  *k = rotate(at::linear(h, s.cast(w.k)).view({tokens, s.config.num_key_value_heads, dim}),
              rope.cosines, rope.sines);
  *v = at::linear(h, s.cast(w.v)).view({tokens, s.config.num_key_value_heads, dim});
}

at::Tensor Llama::post_attention(int layer, const at::Tensor& x, const at::Tensor& o) const {
  const State& s = *state_;
  const LayerWeights& w = s.layers[layer];
  const at::Tensor after_attention =
      x + at::linear(o.reshape({x.size(0), s.config.num_attention_heads * s.config.head_dim}),
                     s.cast(w.o));
  const at::Tensor h = s.norm(after_attention, w.post_norm);
  const at::Tensor gated = at::silu(at::linear(h, s.cast(w.gate))) * at::linear(h, s.cast(w.up));
  return after_attention + at::linear(gated, s.cast(w.down));
}

at::Tensor Llama::loss_sum(const at::Tensor& x, const at::Tensor& targets) const {
  const State& s = *state_;
  const at::Tensor logits = at::linear(s.norm(x, s.final_norm), s.cast(s.head)).to(s.master);
  return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, /*ignore_index=*/-100);
}

}  // namespace distca
