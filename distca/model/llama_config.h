#pragma once
// The shape of a model, and what follows from it without PyTorch: sizes, floating-point operations,
// and Hugging Face's config.json. Any thread may call these functions.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "distca/base/json.h"
#include "distca/base/scalar_type.h"
#include "distca/cost/memory_price.h"
#include "distca/kernels/attention.h"

namespace distca {

/// The family of Hugging Face's models that a model belongs to.
enum class ModelType : uint8_t {
  kLlama,  // with a window, Mistral; with windows that differ by layer, Ministral
  kQwen2,  // Llama with a bias behind the products that make Q, K and V
  kQwen3,  // Llama with a norm of each head's Q and K
};

/// The shape of a model. Names and meaning are those of Hugging Face's LlamaConfig; `distca train
/// --print-config` prints a reason for each.
struct LlamaConfig {
  int64_t vocab_size = 256;         // tokens; 256 are the byte tokenizer's
  int64_t hidden_size = 256;        // width of the residual stream
  int64_t intermediate_size = 704;  // width of the MLP
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;  // query heads
  int64_t num_key_value_heads = 2;  // divides num_attention_heads; fewer of them is GQA
  int64_t head_dim = 64;            // a multiple of 8
  double rope_theta = 10000.0;      // base of the rotary position embedding
  double rms_norm_eps = 1e-5;
  double initializer_range = 0.02;          // standard deviation of the initial weights
  bool tie_word_embeddings = false;         // the head uses the embedding's weights
  int64_t sliding_window = 0;               // tokens a query sees, itself included. 0 means all.
  ScalarType dtype = ScalarType::kFloat32;  // type of activations and matrix products
  ModelType model_type = ModelType::kLlama;
  std::string rope_parameters;          // how RoPE is stretched (rope_scaling.h). "" means not.
  int64_t max_position_embeddings = 0;  // tokens; no phase reads it. 0 means unknown.
  /// "full_attention" (all keys) or "sliding_attention" (sliding_window) for each layer. Empty
  /// means that sliding_window is that of all layers.
  std::vector<std::string> layer_types;

  static constexpr int64_t kMostLayers = 1 << 14;

  /// A number, by its key in [model] and in config.json, and what it may be in both.
  struct Number {
    std::string_view key;
    std::variant<int64_t LlamaConfig::*, double LlamaConfig::*> value;
    double least, most;
  };
  static std::span<const Number> numbers();

  bool has_qkv_bias() const { return model_type == ModelType::kQwen2; }
  bool has_qk_norm() const { return model_type == ModelType::kQwen3; }

  /// Throws Error(kConfig) with the values that do not fit each other.
  void check() const;
  int64_t num_parameters() const;
  /// The windows that layers have, each once: 0 (all keys) first, then sliding_window.
  std::vector<int64_t> windows() const;
  /// [layer] Its place in windows().
  std::vector<int> window_of_layer() const;
  /// [window] How many layers have it.
  std::vector<int64_t> num_layers_of_windows() const;
  bool windows_differ() const { return windows().size() > 1; }
  /// The model as one of so many ranks has it that divide its matrices: its heads and inner
  /// features. Where there are fewer key/value heads than ranks, it has one of them.
  LlamaConfig divided(int ranks) const;
  /// The sizes that the planner and programs need, with the window of this place in windows().
  ModelShape shape(size_t window = 0) const;
  /// Sizes likewise of one of so many ranks that divide its matrices. Of the vocabulary, it is the
  /// largest part.
  ModelShape shape_of_rank(int ranks, size_t window = 0) const;
  /// The shape of one layer's core attention.
  kernels::Shape attention_shape() const;
  /// Floating-point operations of one training step over `tokens` tokens whose causal attention has
  /// `pairs` (query, key) pairs. Backward counts as twice forward.
  /// Counts: matrix products. Ignores: norms, RoPE, softmax.
  double train_flops(int64_t tokens, int64_t pairs) const;
  /// The config.json of a Hugging Face LlamaForCausalLM, MistralForCausalLM if there is a window,
  /// MinistralForCausalLM if windows differ by layer, Qwen2ForCausalLM or Qwen3ForCausalLM. Its
  /// max_position_embeddings is at least `tokens`, but under yarn the length that it stretches
  /// (RopeScaling::to_hugging_face).
  Json to_hugging_face(int64_t tokens) const;
  /// "", or a line that says which versions of transformers read that file as another model.
  std::string read_otherwise() const;
  /// The number of positions that the model is made for. 0 means that it is not known. Yarn
  /// stretches max_position_embeddings.
  int64_t num_positions() const;
};

}  // namespace distca
