#include "distca/model/llama_config.h"

#include <algorithm>
#include <cmath>

#include "distca/base/error.h"
#include "distca/model/rope_scaling.h"
#include "distca/model/weight_table.h"

namespace distca {

void LlamaConfig::check() const {
  // The upper bounds keep every product of sizes within 64 bits.
  auto within = [](const char* key, int64_t value, int64_t most) {
    DISTCA_THROW_IF(value < 1 || value > most, ErrorKind::kConfig,
                    "model.{} = {}: must be at {} {}", key, value, value < 1 ? "least" : "most",
                    value < 1 ? 1 : most);
  };
  within("vocab_size", vocab_size, 1 << 30);
  within("hidden_size", hidden_size, 1 << 20);
  within("intermediate_size", intermediate_size, 1 << 20);
  within("num_hidden_layers", num_hidden_layers, 1 << 14);
  within("num_attention_heads", num_attention_heads, 1 << 14);
  within("num_key_value_heads", num_key_value_heads, 1 << 14);
  within("head_dim", head_dim, 1 << 10);
  DISTCA_THROW_IF(num_attention_heads % num_key_value_heads != 0, ErrorKind::kConfig,
                  "model.num_attention_heads = {} is not divisible by model.num_key_value_heads = "
                  "{}: every key head serves equally many query heads",
                  num_attention_heads, num_key_value_heads);
  DISTCA_THROW_IF(head_dim % 8 != 0, ErrorKind::kConfig,
                  "model.head_dim = {}: must be a multiple of 8", head_dim);
  DISTCA_THROW_IF(sliding_window < 0, ErrorKind::kConfig,
                  "model.sliding_window = {}: 0 (off) or a number of tokens", sliding_window);
  parse_rope_scaling(rope_parameters, "model.rope_parameters");
}

int64_t LlamaConfig::num_parameters() const {
  int64_t total = 0;
  for (const Weight& weight : weight_table(*this)) total += weight.numel();
  return total;
}

ModelShape LlamaConfig::shape() const {
  return {.num_layers = num_hidden_layers,
          .hidden_size = hidden_size,
          .intermediate_size = intermediate_size,
          .attention = {.num_heads = num_attention_heads,
                        .num_kv_heads = num_key_value_heads,
                        .head_dim_qk = head_dim,
                        .head_dim_v = head_dim,
                        .element_bytes = element_bytes(dtype),
                        .window_left = sliding_window > 0 ? sliding_window - 1 : -1},
          .vocab_size = vocab_size,
          .has_qk_norm = has_qk_norm()};
}

kernels::Shape LlamaConfig::attention_shape() const {
  return {.num_heads = num_attention_heads,
          .num_kv_heads = num_key_value_heads,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim,
          .softmax_scale = 1 / std::sqrt(static_cast<double>(head_dim))};
}

double LlamaConfig::train_flops(int64_t tokens, int64_t pairs) const {
  double matrices = static_cast<double>(hidden_size) * vocab_size;  // the head's, tied or not
  for (const Weight& weight : weight_table(*this)) {
    if (weight.layer >= 0 && weight.is_matrix()) matrices += static_cast<double>(weight.numel());
  }
  const double attention =
      4.0 * num_hidden_layers * num_attention_heads * head_dim;  // QK^T and PV, per pair
  return 3.0 *
         (static_cast<double>(tokens) * 2.0 * matrices + static_cast<double>(pairs) * attention);
}

Json LlamaConfig::to_hugging_face(int64_t tokens) const {
  Json json = {{"architectures", {"LlamaForCausalLM"}},
               {"model_type", "llama"},
               {"vocab_size", vocab_size},
               {"hidden_size", hidden_size},
               {"intermediate_size", intermediate_size},
               {"num_hidden_layers", num_hidden_layers},
               {"num_attention_heads", num_attention_heads},
               {"num_key_value_heads", num_key_value_heads},
               {"head_dim", head_dim},
               {"rope_theta", rope_theta},
               {"rms_norm_eps", rms_norm_eps},
               {"initializer_range", initializer_range},
               {"tie_word_embeddings", tie_word_embeddings},
               {"max_position_embeddings", std::max(tokens, max_position_embeddings)},
               {"hidden_act", "silu"},
               {"attention_bias", false},
               {"mlp_bias", false},
               {"bos_token_id", nullptr},  // else Llama's own, which are other text here
               {"eos_token_id", nullptr},
               {"torch_dtype", dtype == ScalarType::kFloat64 ? "float64" : "float32"}};
  // The spelling of transformers 4, which 5 reads, too.
  if (!rope_parameters.empty()) json["rope_scaling"] = Json::parse(rope_parameters);
  if (sliding_window > 0) json["sliding_window"] = sliding_window;
  if (model_type == ModelType::kLlama) {
    if (sliding_window > 0) {  // Hugging Face's Llama has no window; Mistral is Llama with one
      json["architectures"] = {"MistralForCausalLM"};
      json["model_type"] = "mistral";
    }
    return json;
  }
  const bool is_qwen2 = model_type == ModelType::kQwen2;
  json["architectures"] = {is_qwen2 ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM"};
  json["model_type"] = is_qwen2 ? "qwen2" : "qwen3";
  if (is_qwen2) json.erase("attention_bias");  // Qwen2 has it of Q, K and V, and no such key
  json.erase("mlp_bias");
  json["use_sliding_window"] = sliding_window > 0;
  json["max_window_layers"] = sliding_window > 0 ? 0 : num_hidden_layers;  // the first with one
  return json;
}

}  // namespace distca
