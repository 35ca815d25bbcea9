#include "distca/train/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "distca/base/error.h"
#include "distca/model/hugging_face_testing.h"
#include "distca/model/model_testing.h"
#include "distca/train/start_weights.h"

namespace distca {
namespace {

constexpr int64_t kTokens = 70;

LlamaConfig small_decoder(ScalarType dtype, int64_t window) {
  LlamaConfig config;
  config.vocab_size = 19;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.initializer_range = 0.3;
  config.dtype = dtype;
  config.sliding_window = window;
  return config;
}

at::Tensor document() { return at::arange(kTokens, at::kLong) * 7 % 19; }

/// x of the last layer: each query computed from all keys that it sees, nothing kept.
at::Tensor plain(const Llama& model, const at::Tensor& ids) {
  const c10::AutoGradMode no_grad(false);
  const LlamaConfig& config = model.config();
  const at::Tensor rows = at::arange(ids.size(0), at::kLong);
  const at::Tensor back = rows.unsqueeze(1) - rows.unsqueeze(0);
  const auto rope = model.rope(rows);
  at::Tensor x = model.embed(ids), q, k, v;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int64_t window = config.windows()[config.window_of_layer()[layer]];
    const at::Tensor hidden = (back < 0).logical_or(back >= (window > 0 ? window : kTokens));
    model.pre_attention(layer, x, *rope, &q, &k, &v);
    const int64_t group = q.size(1) / k.size(1);
    const at::Tensor keys = k.repeat_interleave(group, 1), values = v.repeat_interleave(group, 1);
    const at::Tensor scores =
        (at::einsum("ihd,jhd->hij", {q, keys}) / std::sqrt(q.size(2))).masked_fill(hidden, -1e30);
    x = model.post_attention(layer, x, at::einsum("hij,jhd->ihd", {scores.softmax(-1), values}));
  }
  return x;
}

/// x of the last layer, fed in parts of these lengths; the rest at once.
at::Tensor fed(const Llama& model, const std::vector<int64_t>& lengths) {
  Decoder decoder(model, kTokens, 1);
  std::vector<at::Tensor> parts;
  for (const int64_t length : lengths)
    parts.push_back(decoder.feed(document().narrow(0, decoder.tokens(), length)));
  const int64_t done = decoder.tokens();
  parts.push_back(decoder.feed(document().narrow(0, done, kTokens - done)));
  EXPECT_EQ(decoder.tokens(), kTokens);
  return at::cat(parts);
}

TEST(decoder, a_document_in_parts_is_the_document_at_once) {
  const std::vector<std::vector<int64_t>> cuts = {
      {}, {1}, {33, 1, 1, 1}, {64, 5}, std::vector<int64_t>(69, 1)};
  using Types = std::vector<std::string>;
  const Types differ = {"sliding_attention", "full_attention", "sliding_attention"};
  for (const auto& [window, types] :
       std::vector<std::pair<int64_t, Types>>{{0, {}}, {1, {}}, {5, {}}, {64, {}}, {5, differ}}) {
    LlamaConfig config = small_decoder(ScalarType::kFloat32, window);
    config.layer_types = types;
    const Llama model(config, 3, -1);
    config.dtype = ScalarType::kFloat64;
    const Llama exact(config, 3, -1);
    const at::Tensor want = plain(exact, document());
    for (const std::vector<int64_t>& lengths : cuts) {
      EXPECT_LE(distance(fed(exact, lengths), want), 1e-12) << window << " " << lengths.size();
      EXPECT_LE(distance(fed(model, lengths), want), 1e-5) << window << " " << lengths.size();
    }
  }
}

TEST(decoder, no_more_tokens_than_were_said) {
  const Llama model(small_decoder(ScalarType::kFloat32, 0), 3, -1);
  Decoder decoder(model, 4, 1);
  decoder.feed(document().narrow(0, 0, 3));
  EXPECT_THROW(decoder.feed(document().narrow(0, 3, 2)), CheckFailure);
}

TEST(decoder, logits_are_those_of_the_loss) {
  const Llama model(small_decoder(ScalarType::kFloat64, 0), 3, -1);
  const at::Tensor x = plain(model, document()), targets = document().roll(1);
  const at::Tensor chosen = model.logits(x).log_softmax(-1).gather(1, targets.unsqueeze(1));
  const double want = model.chunk_losses(x, targets, 16).sum().item<double>();
  EXPECT_NEAR(-chosen.sum().item<double>(), want, 1e-12 * want);
}

TEST(decoder, weights_of_a_folder_reach_every_copy) {
  const testing::TestFolder folder;
  write_file_atomically(folder / "config.json", testing::small_config().dump());
  LlamaConfig config = read_hugging_face_config(folder);
  std::vector<StoredTensor> tensors;
  for (const Weight& weight : weight_table(config))
    tensors.push_back({.name = weight.name, .type = ScalarType::kFloat32, .shape = weight.shape});
  testing::write_tensors(folder / "model.safetensors", tensors, 0x3c);
  for (const ScalarType dtype : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    config.dtype = dtype;
    const Llama model(config, 1, -1);
    load_weights(HuggingFaceWeights(folder, config), model);
    for (const at::Tensor& weight : model.parameters())
      EXPECT_TRUE(at::all(weight == std::bit_cast<float>(0x3c3c3c3c)).item<bool>());
    // The head is one of the copies: all of its rows are equal, so all logits are.
    Decoder decoder(model, 2, 1);
    const at::Tensor logits = model.logits(decoder.feed(at::tensor({1, 2}, at::kLong)));
    EXPECT_TRUE(at::equal(logits, logits.narrow(1, 0, 1).expand_as(logits)));
    EXPECT_GT(logits.min().item<double>(), 0);
  }
}

}  // namespace
}  // namespace distca
