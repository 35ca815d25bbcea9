#include "distca/model/llama.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "distca/base/error.h"

namespace distca {
namespace {

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
    EXPECT_EQ(model.parameter_names().size(), model.parameters().size());
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

TEST(llama, rope_depends_on_the_distance_of_positions_alone) {
  const c10::AutoGradMode no_grad(false);
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

TEST(llama, rows_without_target_do_not_count) {
  const c10::AutoGradMode no_grad(false);
  const Llama model(tiny(), 1, -1);
  const at::Tensor x = at::randn({3, 16}, at::kDouble);
  const double all = model.loss_sum(x, at::tensor({1, 2, 3}, at::kLong)).item<double>();
  const double first = model.loss_sum(x, at::tensor({1, -100, -100}, at::kLong)).item<double>();
  const double rest = model.loss_sum(x, at::tensor({-100, 2, 3}, at::kLong)).item<double>();
  EXPECT_NEAR(all, first + rest, 1e-12 * all);
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
