// The backward that Llama's phases write out has the bits of what autograd records of the same
// operators: it adds the same numbers in the same order.

#include <ATen/ATen.h>

#include "distca/model/llama.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "distca/comm/aten_types.h"
#include "distca/model/operators.h"

namespace distca {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RecordedNormLinear : torch::autograd::Function<RecordedNormLinear> {
  using Maybe = std::optional<at::Tensor>;
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const at::Tensor& weight, double eps, const Maybe& first,
                               const Maybe& second, const Maybe& third, const Maybe& first_bias,
                               const Maybe& second_bias, const Maybe& third_bias) {
    variable_list matrices, biases;
    for (const Maybe& matrix : {first, second, third})
      if (matrix) matrices.push_back(*matrix);
    for (const Maybe& bias : {first_bias, second_bias, third_bias})
      if (bias) biases.push_back(*bias);
    Normed kept;
    variable_list results = norm_linear(x, weight, eps, matrices, biases, Keep::kProducts, &kept);
    variable_list saved = {x, weight, kept.factors, kept.rows};
    std::ranges::copy(matrices, std::back_inserter(saved));
    context->save_for_backward(saved);
    context->saved_data["has_biases"] = !biases.empty();
    return results;
  }
  static variable_list backward(AutogradContext* context, const variable_list& d_results) {
    const variable_list saved = context->get_saved_variables();
    const auto [d_x, d_weight] =
        norm_linear_backward({.factors = saved[2], .rows = {}}, saved[0], saved[1],
                             {saved.begin() + 4, saved.end()}, d_results);
    variable_list gradients(9);  // one for each argument of forward
    gradients[0] = d_x;
    gradients[1] = d_weight;
    for (size_t i = 0; i < d_results.size(); ++i) {
      gradients[3 + i] = matrix_gradient(d_results[i], saved[3]);
      if (context->saved_data["has_biases"].toBool())
        gradients[6 + i] = bias_gradient(d_results[i], saved[1].scalar_type());
    }
    return gradients;
  }
};

variable_list norm_linear_recorded(const at::Tensor& x, const at::Tensor& weight, double eps,
                                   const variable_list& matrices,
                                   const variable_list& biases = {}) {
  const auto one_of = [](const variable_list& all, size_t i) {
    return i < all.size() ? std::optional(all[i]) : std::nullopt;
  };
  return RecordedNormLinear::apply(x, weight, eps, one_of(matrices, 0), one_of(matrices, 1),
                                   one_of(matrices, 2), one_of(biases, 0), one_of(biases, 1),
                                   one_of(biases, 2));
}

struct RecordedSwiglu : torch::autograd::Function<RecordedSwiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return swiglu(gate, up);
  }
  static variable_list backward(AutogradContext* context, const variable_list& d_results) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor d_gate = at::empty_like(saved[0]), d_up = d_results[0].clone();
    swiglu_backward(saved[0], saved[1], d_gate, d_up);
    return {d_gate, d_up};
  }
};

struct RecordedRotate : torch::autograd::Function<RecordedRotate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& cosines, const at::Tensor& sines) {
    context->save_for_backward({cosines, sines});
    return rotate(x, {cosines, sines});
  }
  static variable_list backward(AutogradContext* context, const variable_list& d_results) {
    const variable_list saved = context->get_saved_variables();
    return {rotate(d_results[0], {saved[0], saved[1]}, /*direction=*/-1), {}, {}};
  }
};

struct RecordedNormRotate : torch::autograd::Function<RecordedNormRotate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps, const at::Tensor& cosines, const at::Tensor& sines) {
    at::Tensor factors;
    const at::Tensor y = norm_rotate(x, weight, eps, {cosines, sines}, &factors);
    context->save_for_backward({x, weight, factors, cosines, sines});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& d_results) {
    const variable_list s = context->get_saved_variables();
    const auto [d_x, d_weight] = norm_rotate_backward(d_results[0], s[0], s[1], s[2], {s[3], s[4]});
    return {d_x, d_weight, {}, {}, {}};
  }
};

/// The phases of one layer and the loss, as autograd records them.
class Recorded {
 public:
  Recorded(const Llama& model, at::ScalarType compute) : config_(model.config()) {
    for (size_t i = 0; i < model.parameters().size(); ++i) {
      const at::Tensor& parameter = model.parameters()[i];
      const bool narrow = parameter.dim() > 1;
      const std::string& name = model.weights()[i].name;
      names_.push_back(name);
      leaves_[name] = parameter.to(narrow ? compute : parameter.scalar_type(), false, /*copy=*/true)
                          .set_requires_grad(true);
      gradients_[name] = at::zeros_like(parameter);
    }
    if (config_.tie_word_embeddings) leaves_["lm_head.weight"] = leaves_[names_.front()];
  }
  const at::Tensor& weight(const std::string& name) const { return leaves_.at(name); }
  const at::Tensor& of_layer(const std::string& name) const {
    return weight("model.layers.0." + name + ".weight");
  }
  /// Adds what a backward has left, as the phases do: once for each call of them.
  void collect() {
    for (const std::string& name : names_) {
      at::Tensor& gradient = leaves_[name].mutable_grad();
      if (gradient.defined()) gradients_[name].add_(std::exchange(gradient, at::Tensor()));
    }
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const std::string& name : names_) all.push_back(gradients_.at(name));
    return all;
  }

  variable_list pre_attention(const at::Tensor& x, const at::Tensor& cosines,
                              const at::Tensor& sines) const {
    variable_list biases;
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      if (config_.has_qkv_bias())
        biases.push_back(weight(std::string("model.layers.0.self_attn.") + name + ".bias"));
    }
    variable_list qkv = norm_linear_recorded(
        x, of_layer("input_layernorm"), config_.rms_norm_eps,
        variable_list{of_layer("self_attn.q_proj"), of_layer("self_attn.k_proj"),
                      of_layer("self_attn.v_proj")},
        biases);
    for (size_t i = 0; i < 3; ++i) {
      qkv[i] = qkv[i].view({x.size(0), qkv[i].size(1) / config_.head_dim, config_.head_dim});
      if (i == 2) continue;
      qkv[i] = config_.has_qk_norm()
                   ? RecordedNormRotate::apply(
                         qkv[i], of_layer(i == 0 ? "self_attn.q_norm" : "self_attn.k_norm"),
                         config_.rms_norm_eps, cosines, sines)
                   : RecordedRotate::apply(qkv[i], cosines, sines);
    }
    return qkv;
  }
  at::Tensor post_attention(const at::Tensor& x, const at::Tensor& o) const {
    const at::Tensor after =
        x + at::linear(o.reshape({x.size(0), o.size(1) * o.size(2)}), of_layer("self_attn.o_proj"));
    const variable_list inner =
        norm_linear_recorded(after, of_layer("post_attention_layernorm"), config_.rms_norm_eps,
                             variable_list{of_layer("mlp.gate_proj"), of_layer("mlp.up_proj")});
    return after + at::linear(RecordedSwiglu::apply(inner[0], inner[1]), of_layer("mlp.down_proj"));
  }
  at::Tensor loss(const at::Tensor& x, const at::Tensor& targets) const {
    const variable_list logits = norm_linear_recorded(
        x, weight("model.norm.weight"), config_.rms_norm_eps, {weight("lm_head.weight")});
    const at::Tensor wide = logits[0].to(weight("model.norm.weight").scalar_type());
    return at::nll_loss(at::log_softmax(wide, 1), targets, {}, at::Reduction::Sum, -100);
  }

 private:
  const LlamaConfig config_;
  std::vector<std::string> names_;
  std::map<std::string, at::Tensor> leaves_, gradients_;
};

struct Kind {
  std::string name;
  void (*change)(LlamaConfig&);
};

class PhasesTest : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(
    , PhasesTest,
    ::testing::Values(Kind{"llama", [](LlamaConfig&) {}},
                      Kind{"tied", [](LlamaConfig& c) { c.tie_word_embeddings = true; }},
                      Kind{"qwen2", [](LlamaConfig& c) { c.model_type = ModelType::kQwen2; }},
                      Kind{"qwen3", [](LlamaConfig& c) { c.model_type = ModelType::kQwen3; }}),
    [](const auto& info) { return info.param.name; });

LlamaConfig one_layer() {
  LlamaConfig config;
  config.vocab_size = 61;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.initializer_range = 0.2;
  return config;
}

/// Cosines and sines as Llama::rope() has them.
std::pair<at::Tensor, at::Tensor> tables(const LlamaConfig& config, const at::Tensor& positions,
                                         at::ScalarType type) {
  const int64_t half = config.head_dim / 2;
  const at::Tensor exponents = at::arange(half, at::kDouble) / static_cast<double>(half);
  const at::Tensor angles =
      positions.to(at::kDouble).unsqueeze(1) * at::pow(config.rope_theta, -exponents).unsqueeze(0);
  const at::Tensor cosines = angles.cos().to(type).unsqueeze(1),
                   sines = angles.sin().to(type).unsqueeze(1);
  return {at::cat({cosines, cosines}, -1), at::cat({-sines, sines}, -1)};
}

void expect_same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  EXPECT_TRUE(at::equal(got, want)) << what << ": " << (got - want).abs().max().item<double>();
}

TEST_P(PhasesTest, backward_has_the_bits_of_autograd) {
  LlamaConfig config = one_layer();
  GetParam().change(config);
  for (const ScalarType dtype :
       {ScalarType::kFloat32, ScalarType::kBFloat16, ScalarType::kFloat64}) {
    for (const Keep keep : {Keep::kProducts, Keep::kInputs}) {
      config.dtype = dtype;
      const Llama model(config, 5, -1);
      const at::ScalarType compute = aten_type(dtype);
      Recorded recorded(model, compute);
      for (const int64_t rows : {900, 1, 0}) {  // one call after another adds to the same sums
        at::manual_seed(rows);
        const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(compute); };
        const at::Tensor x = random({rows, 48}), o = random({rows, 4, 16});
        const at::Tensor positions = at::arange(rows, at::kLong);
        const at::Tensor targets = (positions * 7 % 61).masked_fill(positions % 5 == 0, -100);
        const auto rope = model.rope(positions);

        at::Tensor q, k, v, d_last;
        std::shared_ptr<Llama::PreAttention> pre;
        std::shared_ptr<Llama::PostAttention> post;
        model.pre_attention(0, x, *rope, &q, &k, &v, keep, &pre);
        const at::Tensor y = model.post_attention(0, x, o, keep, &post);
        model.chunk_losses(y, targets, 10'000, 0.25, &d_last);
        const auto [d_residual, d_o] = model.post_attention_backward(0, o, *post, d_last);
        const at::Tensor d_x =
            d_residual + model.pre_attention_backward(0, x, *rope, *pre, q, k, v);

        const at::Tensor leaf = x.clone().set_requires_grad(true),
                         leaf_o = o.clone().set_requires_grad(true);
        const auto [cosines, sines] =
            tables(config, positions, model.parameters()[1].scalar_type());
        const variable_list qkv = recorded.pre_attention(leaf, cosines, sines);
        const at::Tensor end = recorded.post_attention(leaf, leaf_o),
                         last = end.detach().set_requires_grad(true);
        expect_same(end.detach(), y, "y");
        if (rows > 0) {
          const at::Tensor loss = recorded.loss(last, targets);
          torch::autograd::backward({loss}, {at::full_like(loss, 0.25)});
          expect_same(d_last, last.grad(), "d_y");
        }
        torch::autograd::backward({end}, {d_last});
        torch::autograd::backward(qkv, {q, k, v});
        recorded.collect();
        expect_same(d_x, leaf.grad(), "d_x");
        expect_same(d_o, leaf_o.grad(), "d_o");
      }
      const std::vector<at::Tensor> want = recorded.gradients();
      for (size_t i = config.tie_word_embeddings ? 0 : 1; i < want.size(); ++i)  // embed() is none
        expect_same(model.parameters()[i].grad(), want[i], model.weights()[i].name);
    }
  }
}

}  // namespace
}  // namespace distca
