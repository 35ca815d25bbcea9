#include "distca/model/llama.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <span>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/comm/aten_types.h"
#include "distca/model/model_testing.h"
#include "distca/program/program.h"

namespace distca {
namespace {

double loss_sum(const Llama& model, const at::Tensor& x, const at::Tensor& targets,
                int64_t chunk_tokens, double scale = 1, at::Tensor* d_x = nullptr,
                at::Tensor* losses = nullptr) {
  return model.chunk_losses(x, targets, chunk_tokens, scale, d_x, losses)
      .sum(at::kDouble)
      .item<double>();
}

LlamaConfig tiny() {
  LlamaConfig config;
  config.vocab_size = 19;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.dtype = ScalarType::kFloat64;
  return config;
}

TEST(llama, parameter_count_is_what_the_config_says) {
  for (bool tied : {false, true}) {
    LlamaConfig config = tiny();
    config.tie_word_embeddings = tied;
    const Llama model(config, 1, -1);
    int64_t total = 0;
    for (const at::Tensor& parameter : model.parameters()) total += parameter.numel();
    EXPECT_EQ(total, config.num_parameters());
    EXPECT_EQ(model.weights().size(), model.parameters().size());
  }
}

TEST(llama, weights_are_a_function_of_the_seed_and_not_of_the_dtype) {
  LlamaConfig config = tiny();
  const Llama wide(config, 7, -1);
  config.dtype = ScalarType::kBFloat16;
  const Llama narrow(config, 7, -1), other(config, 8, -1);
  EXPECT_TRUE(at::equal(wide.parameters()[0].to(at::kFloat), narrow.parameters()[0]));
  EXPECT_FALSE(at::equal(narrow.parameters()[0], other.parameters()[0]));
}

TEST(llama, stages_draw_the_weights_of_the_whole_model) {
  LlamaConfig config = tiny();
  config.num_hidden_layers = 3;
  const Llama whole(config, 7, -1);
  size_t next = 0;
  for (const Stage& stage : {Stage{0, 2, {0, 1}}, Stage{1, 2, {1, 3}}}) {
    const Llama part(config, stage, 7, -1);
    for (const at::Tensor& parameter : part.parameters())
      EXPECT_TRUE(at::equal(parameter, whole.parameters().at(next++))) << next;
  }
  EXPECT_EQ(next, whole.parameters().size());
}

TEST(llama, ranks_of_tensor_parallelism_draw_their_parts_of_the_whole_model) {
  const LlamaConfig config = tiny();
  const Llama whole(config, 7, -1);
  for (const int size : {2, 4}) {
    for (int index = 0; index < size; ++index) {
      Stage stage = whole_model(config);
      stage.tensor = {.size = size, .index = index};
      const Llama part(config, stage, 7, -1);
      for (size_t i = 0; i < part.weights().size(); ++i) {
        EXPECT_TRUE(
            at::equal(part.parameters()[i], part_of(part.weights()[i].box, whole.parameters()[i])))
            << part.weights()[i].name << " of rank " << index << " of " << size;
      }
    }
  }
}

TEST(llama, the_last_stages_copy_of_a_tied_embedding_gives_the_loss_of_the_whole_model) {
  LlamaConfig config = tiny();
  config.tie_word_embeddings = true;
  for (const ScalarType dtype : {ScalarType::kFloat64, ScalarType::kBFloat16}) {
    config.dtype = dtype;
    for (const MainParams main_params : {MainParams::kHere, MainParams::kElsewhere}) {
      const Llama whole(config, 7, -1, main_params),
          last(config, Stage{1, 2, {1, 2}}, 7, -1, main_params);
      EXPECT_TRUE(at::equal(last.parameters().back(), whole.parameters().front()));
      const at::Tensor x = at::randn({7, 16}, at::kDouble).to(aten_type(dtype));
      const at::Tensor targets = at::tensor({1, -100, 3, 0, 18, 5, 2}, at::kLong);
      at::Tensor d_x, want;
      EXPECT_EQ(loss_sum(last, x, targets, 4, 0.5, &d_x),
                loss_sum(whole, x, targets, 4, 0.5, &want));
      EXPECT_TRUE(at::equal(d_x, want));
      EXPECT_TRUE(at::equal(last.parameters().back().grad(), whole.parameters().front().grad()));
    }
  }
}

TEST(llama, initial_weights_are_pinned_and_the_same_for_any_number_of_threads) {
  LlamaConfig config = tiny();
  config.hidden_size = 4096;  // so that a matrix has several blocks of draws
  const auto hash = [&] {
    const Llama model(config, 7, -1);
    std::vector<uint64_t> hashes;
    for (const at::Tensor& parameter : model.parameters()) {
      const at::Tensor weights = parameter.detach().to(at::kFloat);
      hashes.push_back(hash_words({static_cast<const std::byte*>(weights.const_data_ptr()),
                                   static_cast<size_t>(weights.nbytes())}));
    }
    return hash_words(std::as_bytes(std::span(hashes)));
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const uint64_t one = hash();
  at::set_num_threads(3);
  EXPECT_EQ(hash(), one);
  at::set_num_threads(threads);
  EXPECT_EQ(one, 5377332934140952978u) << "weights of an old run must come back on every machine";
}

TEST(llama, rope_depends_on_the_distance_of_positions_alone) {
  const Llama model(tiny(), 1, -1);
  const at::Tensor x = at::randn({1, 16}, at::kDouble).expand({4, 16}).contiguous();
  const auto rope = model.rope(at::tensor({3, 10, 1003, 1010}, at::kLong));
  at::Tensor q, k, v;
  model.pre_attention(0, x, *rope, &q, &k, &v);
  // Query head 0 reads key head 0; positions 10 - 3 and 1010 - 1003 are equally far apart.
  const double near = (q[1][0] * k[0][0]).sum().item<double>();
  const double far = (q[3][0] * k[2][0]).sum().item<double>();
  EXPECT_NEAR(near, far, 1e-12);  // angles of up to 1e3 rad in double: 1e3 * 2^-53 relative
  EXPECT_NE(near, (q[2][0] * k[0][0]).sum().item<double>());
}

/// softmax(Q K^T / sqrt(D)) V of one document, causal: q [T, H, D], k and v [T, G, D].
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = q.size(0), group = q.size(1) / k.size(1);
  const at::Tensor keys = k.repeat_interleave(group, 1), values = v.repeat_interleave(group, 1);
  const at::Tensor hidden = at::ones({tokens, tokens}, at::kBool).triu(1);
  const at::Tensor scores = at::einsum("ihd,jhd->hij", {q, keys}) / std::sqrt(q.size(2));
  const at::Tensor weights = scores.masked_fill(hidden, -1e30).softmax(-1);
  return at::einsum("hij,jhd->ihd", {weights, values});
}

/// RoPE as Hugging Face's Llama has it: feature i turns with feature i + D / 2 by position *
/// theta^(-2 i / D).
at::Tensor plain_rope(const at::Tensor& x, double theta) {
  at::Tensor turned = x.clone();
  const int64_t half = x.size(2) / 2;
  for (int64_t position = 0; position < x.size(0); ++position) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(theta, -static_cast<double>(i) / half);
      const at::Tensor a = x[position].select(1, i), b = x[position].select(1, i + half);
      turned[position].select(1, i).copy_(a * std::cos(angle) - b * std::sin(angle));
      turned[position].select(1, i + half).copy_(b * std::cos(angle) + a * std::sin(angle));
    }
  }
  return turned;
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x / (x.square().mean(-1, true) + eps).sqrt() * weight;
}

TEST(llama, phases_are_the_llama_of_the_formulas) {
  LlamaConfig config = tiny();
  config.initializer_range = 0.3;
  const Llama model(config, 3, -1);
  std::map<std::string, at::Tensor> w;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    w[model.weights()[i].name] = model.parameters()[i];
  }
  const int64_t tokens = 11, heads = config.num_attention_heads,
                kv_heads = config.num_key_value_heads;
  const at::Tensor ids = at::arange(tokens, at::kLong) * 7 % config.vocab_size;
  const at::Tensor targets = at::arange(tokens, at::kLong) * 5 % config.vocab_size;

  at::Tensor x = w["model.embed_tokens.weight"].index_select(0, ids), y = model.embed(ids);
  const auto rope = model.rope(at::arange(tokens, at::kLong));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string p = fmt::format("model.layers.{}.", layer);
    const at::Tensor h = plain_norm(x, w[p + "input_layernorm.weight"], config.rms_norm_eps);
    auto project = [&](const char* name, int64_t n) {
      return h.mm(w[p + "self_attn." + name + ".weight"].t()).view({tokens, n, config.head_dim});
    };
    const at::Tensor o = plain_attention(plain_rope(project("q_proj", heads), config.rope_theta),
                                         plain_rope(project("k_proj", kv_heads), config.rope_theta),
                                         project("v_proj", kv_heads));
    x = x + o.reshape({tokens, -1}).mm(w[p + "self_attn.o_proj.weight"].t());
    const at::Tensor g =
        plain_norm(x, w[p + "post_attention_layernorm.weight"], config.rms_norm_eps);
    const at::Tensor gate = g.mm(w[p + "mlp.gate_proj.weight"].t());
    x = x + (gate * gate.sigmoid() * g.mm(w[p + "mlp.up_proj.weight"].t()))
                .mm(w[p + "mlp.down_proj.weight"].t());

    at::Tensor q, k, v;
    model.pre_attention(layer, y, *rope, &q, &k, &v);
    y = model.post_attention(layer, y, plain_attention(q, k, v));
  }
  const at::Tensor logits =
      plain_norm(x, w["model.norm.weight"], config.rms_norm_eps).mm(w["lm_head.weight"].t());
  const double want = -logits.log_softmax(-1).gather(1, targets.unsqueeze(1)).sum().item<double>();
  // About a hundred operations in a row, each rounded to 2^-53.
  EXPECT_NEAR(loss_sum(model, y, targets, 4), want, 100 * 0x1p-53 * want);
}

TEST(llama, rows_without_target_do_not_count) {
  const Llama model(tiny(), 1, -1);
  const at::Tensor x = at::randn({3, 16}, at::kDouble);
  const double all = loss_sum(model, x, at::tensor({1, 2, 3}, at::kLong), 3);
  const double first = loss_sum(model, x, at::tensor({1, -100, -100}, at::kLong), 3);
  const double rest = loss_sum(model, x, at::tensor({-100, 2, 3}, at::kLong), 3);
  EXPECT_NEAR(all, first + rest, 1e-12 * all);
}

TEST(llama, losses_of_rows_add_up_and_leave_the_sum_its_bits) {
  LlamaConfig config = tiny();
  for (const ScalarType dtype : {ScalarType::kFloat64, ScalarType::kBFloat16}) {
    config.dtype = dtype;
    const Llama model(config, 1, -1);
    const at::Tensor x = model.embed(at::tensor({4, 2, 0, 18, 7}, at::kLong));
    const at::Tensor targets = at::tensor({1, -100, 3, 0, 18}, at::kLong);
    at::Tensor losses;
    const double sum = loss_sum(model, x, targets, 2, 1, nullptr, &losses);
    EXPECT_EQ(sum, loss_sum(model, x, targets, 2));
    ASSERT_EQ(losses.sizes(), at::IntArrayRef({5}));
    EXPECT_EQ(losses[1].item<double>(), 0);
    EXPECT_NEAR(losses.sum().item<double>(), sum, 1e-6 * sum);
    const double second = loss_sum(model, x.narrow(0, 2, 1), targets.narrow(0, 2, 1), 2);
    EXPECT_NEAR(losses[2].item<double>(), second, 1e-6 * second);
  }
}

TEST(llama, loss_in_chunks_is_the_loss_of_all_rows) {
  const Llama whole(tiny(), 1, -1), chunked(tiny(), 1, -1);
  const at::Tensor x = at::randn({7, 16}, at::kDouble);
  const at::Tensor targets = at::tensor({1, -100, 3, 0, 18, 5, 2}, at::kLong);
  at::Tensor want, got;
  const double loss = loss_sum(whole, x, targets, 7, 0.5, &want);
  EXPECT_NEAR(loss_sum(chunked, x, targets, 3, 0.5, &got), loss, 1e-14 * loss);
  EXPECT_LE(distance(got, want), 1e-14);
  for (const size_t last : {1, 2}) {  // the norm and the head
    const size_t i = whole.parameters().size() - last;
    EXPECT_LE(distance(chunked.parameters()[i].grad(), whole.parameters()[i].grad()), 1e-14);
  }
  EXPECT_EQ(loss_sum(chunked, x.narrow(0, 0, 0), targets.narrow(0, 0, 0), 3, 0.5, &got), 0);
  EXPECT_EQ(got.sizes(), at::IntArrayRef({0, 16}));
}

TEST(llama, gradients_of_looked_up_rows_have_the_bits_of_autograd) {
  LlamaConfig config = tiny();
  for (const ScalarType dtype : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    config.dtype = dtype;
    const Llama model(config, 1, -1);
    const at::Tensor ids = at::tensor({3, 17, 3, 0, 3, 17}, at::kLong);
    const auto occurrences =
        model.occurrences({ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel())});
    const at::Tensor d_x = at::randn({6, 16}).to(model.embed(ids).scalar_type());
    at::Tensor table = model.parameters()[0].detach().clone().set_requires_grad(true);
    for (int nano_batch = 0; nano_batch < 2; ++nano_batch) {
      torch::autograd::backward({at::embedding(table, ids).to(d_x.scalar_type())}, {d_x});
      model.embed_backward(*occurrences, d_x);
    }
    EXPECT_TRUE(at::equal(model.parameters()[0].grad(), table.grad()));
    model.embed_backward(*model.occurrences({}), d_x.narrow(0, 0, 0));
    EXPECT_TRUE(at::equal(model.parameters()[0].grad(), table.grad()));
  }
}

TEST(llama, nano_batches_share_one_copy_of_the_weights_in_the_compute_type) {
  LlamaConfig config = tiny();
  for (const bool tied : {false, true}) {
    config.tie_word_embeddings = tied;
    config.dtype = ScalarType::kFloat32;
    EXPECT_EQ(Llama(config, 1, -1).copy_bytes(), 0);
    config.dtype = ScalarType::kBFloat16;
    const Llama model(config, 1, -1);
    // An embedding that is no head has no copy, because only rows of it are read.
    int64_t matrices = tied ? 0 : -model.weights()[0].numel();
    for (const Weight& weight : model.weights())
      matrices += weight.is_matrix() ? weight.numel() : 0;
    EXPECT_EQ(model.copy_bytes(), 2 * matrices);
    EXPECT_EQ(Llama(config, 1, -1, MainParams::kElsewhere).copy_bytes(), 0);

    // Two nano-batches under way: their gradients are added one after the other, in fp32.
    at::manual_seed(1);
    // x is small compared with what the layer adds, so that the sum is another bf16 number.
    const at::Tensor x = at::randn({5, 16}).mul_(1e-3).to(at::kBFloat16), other = x * 2;
    const at::Tensor d_y = at::ones({5, 16}, at::kBFloat16);
    const at::Tensor o = at::zeros({5, 4, 8}, at::kBFloat16);
    const size_t down = 18;
    ASSERT_EQ(model.weights()[down].name, "model.layers.1.mlp.down_proj.weight");
    at::Tensor want = at::zeros_like(model.parameters()[down].detach());
    for (const at::Tensor& input : {x, other}) {
      const Llama alone(config, 1, -1);
      alone.post_attention_backward(1, o, *alone.post_attention_again(1, input, o), d_y);
      want += alone.parameters()[down].grad();
    }
    const auto first = model.post_attention_again(1, x, o),
               second = model.post_attention_again(1, other, o);
    for (const auto& kept : {first, second}) model.post_attention_backward(1, o, *kept, d_y);
    EXPECT_EQ(model.copy_bytes(), 2 * matrices);
    EXPECT_EQ(model.parameters()[down].grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(model.parameters()[down].grad(), want));

    // The copies follow the parameters when they are told to.
    model.parameters()[down].zero_();
    EXPECT_FALSE(at::equal(model.post_attention(1, x, o), x));
    model.refresh_copies();
    EXPECT_TRUE(at::equal(model.post_attention(1, x, o), x));
  }
}

TEST(llama, heads_that_do_not_divide_are_refused_with_both_numbers) {
  LlamaConfig config = tiny();
  config.num_key_value_heads = 3;
  try {
    config.check();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("num_attention_heads = 4"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("num_key_value_heads = 3"), std::string::npos);
  }
}

}  // namespace
}  // namespace distca
