#include "distca/model/llama_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "distca/base/error.h"
#include "distca/base/integers.h"
#include "distca/model/rope_scaling.h"
#include "distca/model/weight_table.h"

namespace distca {
namespace {

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";

void check_layer_types(const LlamaConfig& model) {
  const std::vector<std::string>& words = model.layer_types;
  for (const std::string& word : words) {
    DISTCA_THROW_IF(word != kFull && word != kSliding, ErrorKind::kConfig,
                    "model.layer_types: \"{}\" is neither full_attention nor sliding_attention",
                    word);
  }
  DISTCA_THROW_IF(static_cast<int64_t>(words.size()) != model.num_hidden_layers, ErrorKind::kConfig,
                  "model.layer_types names {} layers, model.num_hidden_layers = {}", words.size(),
                  model.num_hidden_layers);
  DISTCA_THROW_IF(model.sliding_window == 0 && std::ranges::count(words, kSliding) > 0,
                  ErrorKind::kConfig,
                  "model.layer_types has sliding_attention, and model.sliding_window = 0: say how "
                  "many tokens it sees");
}

/// The family of transformers as which config.json names a model.
struct Family {
  const char* model_type;
  const char* name;
  /// The version of transformers from which the family's RoPE is stretched; earlier ones leave
  /// rope_scaling out of account. Empty: all versions stretch it, or refuse the model.
  const char* first_with_rope_scaling = "";
};

Family family_of(const LlamaConfig& model) {
  if (model.model_type == ModelType::kQwen2) return {"qwen2", "Qwen2", "4.45"};
  if (model.model_type == ModelType::kQwen3) return {"qwen3", "Qwen3"};
  if (model.windows_differ()) return {"ministral", "Ministral"};
  // Hugging Face's Llama has no window; Mistral is Llama with one.
  if (model.windows().back() > 0) return {"mistral", "Mistral", "4.48"};
  return {"llama", "Llama"};
}

/// "", or words that say which versions of transformers compute other frequencies.
std::string rope_read_otherwise(const LlamaConfig& model) {
  const RopeScaling scaling = parse_rope_scaling(model.rope_parameters, "model.rope_parameters");
  // These versions include those before first_with_rope_scaling.
  if (std::string other = scaling.read_otherwise(); !other.empty()) return other;
  const Family family = family_of(model);
  const std::string_view first = family.first_with_rope_scaling;
  if (scaling.type == RopeScaling::Type::kDefault || first.empty()) return "";
  return fmt::format(
      "rope_scaling of {} is not known to transformers before {}, whose frequencies are not "
      "stretched",
      family.name, first);
}

/// "", or words that say in which versions of transformers layers have other windows. Versions that
/// do not know a Ministral refuse it.
std::string windows_read_otherwise(const LlamaConfig& model) {
  if (model.model_type == ModelType::kLlama) return "";
  if (model.windows_differ()) {
    // max_window_layers says these windows, and nothing but flash_attention_2 reads it.
    const bool full_first = std::ranges::is_sorted(model.window_of_layer());
    return fmt::format(
        "layer_types is not known to transformers before 4.53, whose windows differ{}",
        full_first ? " where attention is not flash_attention_2" : "");
  }
  if (model.model_type == ModelType::kQwen3 || model.windows().back() == 0) return "";
  return "sliding_window of Qwen2 is not known to sdpa and eager of transformers 4.42 to 4.45 and "
         "4.48, which see all keys";
}

}  // namespace

std::span<const LlamaConfig::Number> LlamaConfig::numbers() {
  // The upper bounds keep every product of sizes within 64 bits.
  using L = LlamaConfig;
  static constexpr std::array<Number, 12> kNumbers = {
      {{"vocab_size", &L::vocab_size, 1, 0x1p30},
       {"hidden_size", &L::hidden_size, 1, 0x1p20},
       {"intermediate_size", &L::intermediate_size, 1, 0x1p20},
       {"num_hidden_layers", &L::num_hidden_layers, 1, kMostLayers},
       {"num_attention_heads", &L::num_attention_heads, 1, 0x1p14},
       {"num_key_value_heads", &L::num_key_value_heads, 1, 0x1p14},
       {"head_dim", &L::head_dim, 1, 0x1p10},
       {"rope_theta", &L::rope_theta, 1, 1e18},
       {"rms_norm_eps", &L::rms_norm_eps, 0, 1},
       {"initializer_range", &L::initializer_range, 0, 1e300},
       {"sliding_window", &L::sliding_window, 0, 0x1p30},
       {"max_position_embeddings", &L::max_position_embeddings, 0, 0x1p40}}};
  return kNumbers;
}

void LlamaConfig::check() const {
  for (const Number& number : numbers()) {
    const double value = std::visit(
        [this](auto member) { return static_cast<double>(this->*member); }, number.value);
    const bool low = !(value >= number.least);
    DISTCA_THROW_IF(low || value > number.most, ErrorKind::kConfig,
                    "model.{} = {}: must be at {} {}", number.key, value, low ? "least" : "most",
                    low ? number.least : number.most);
  }
  DISTCA_THROW_IF(num_attention_heads % num_key_value_heads != 0, ErrorKind::kConfig,
                  "model.num_attention_heads = {} is not divisible by model.num_key_value_heads = "
                  "{}: every key head serves equally many query heads",
                  num_attention_heads, num_key_value_heads);
  DISTCA_THROW_IF(head_dim % 8 != 0, ErrorKind::kConfig,
                  "model.head_dim = {}: must be a multiple of 8", head_dim);
  if (!layer_types.empty()) check_layer_types(*this);
  const RopeScaling scaling = parse_rope_scaling(rope_parameters, "model.rope_parameters");
  DISTCA_THROW_IF(scaling.type == RopeScaling::Type::kYarn && rope_theta == 1, ErrorKind::kConfig,
                  "model.rope_theta = 1: yarn needs more than 1");
}

int64_t LlamaConfig::num_parameters() const {
  int64_t total = 0;
  for (const Weight& weight : weight_table(*this)) total += weight.numel();
  return total;
}

std::vector<int64_t> LlamaConfig::windows() const {
  if (layer_types.empty()) return {sliding_window};
  std::vector<int64_t> windows;
  if (std::ranges::count(layer_types, kFull) > 0) windows.push_back(0);
  if (std::ranges::count(layer_types, kSliding) > 0) windows.push_back(sliding_window);
  return windows;
}

std::vector<int> LlamaConfig::window_of_layer() const {
  std::vector<int> result(num_hidden_layers, 0);
  if (!windows_differ()) return result;
  std::ranges::transform(layer_types, result.begin(),
                         [](const auto& word) { return word == kSliding; });
  return result;
}

std::vector<int64_t> LlamaConfig::num_layers_of_windows() const {
  std::vector<int64_t> layers(windows().size(), 0);
  for (const int window : window_of_layer()) ++layers[window];
  return layers;
}

LlamaConfig LlamaConfig::divided(int ranks) const {
  LlamaConfig part = *this;
  part.num_attention_heads /= ranks;
  part.num_key_value_heads = std::max<int64_t>(1, num_key_value_heads / ranks);
  part.intermediate_size /= ranks;
  return part;
}

ModelShape LlamaConfig::shape(size_t window) const {
  return {.num_layers = num_hidden_layers,
          .hidden_size = hidden_size,
          .intermediate_size = intermediate_size,
          .attention = {.num_heads = num_attention_heads,
                        .num_kv_heads = num_key_value_heads,
                        .head_dim_qk = head_dim,
                        .head_dim_v = head_dim,
                        .type = dtype,
                        .mask = {.window_left = windows().at(window) - 1}},  // 0 tokens: -1, all
          .vocab_size = vocab_size,
          .has_qk_norm = has_qk_norm()};
}

ModelShape LlamaConfig::shape_of_rank(int ranks, size_t window) const {
  ModelShape shape = divided(ranks).shape(window);
  shape.vocab_size = ceil_div(vocab_size, ranks);
  shape.tensor_ranks = ranks;
  return shape;
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

std::string LlamaConfig::read_otherwise() const {
  const std::string rope = rope_read_otherwise(*this), windows = windows_read_otherwise(*this);
  if (rope.empty() && windows.empty()) return "";
  const char* const between = rope.empty() || windows.empty() ? "" : "; ";
  return fmt::format("config.json: {}{}{}", rope, between, windows);
}

int64_t LlamaConfig::num_positions() const {
  const RopeScaling scaling = parse_rope_scaling(rope_parameters, "model.rope_parameters");
  if (scaling.type != RopeScaling::Type::kYarn || max_position_embeddings == 0)
    return max_position_embeddings;
  const double stretched =
      scaling.factor * static_cast<double>(scaling.original_max_position_embeddings);
  return std::max(max_position_embeddings, static_cast<int64_t>(stretched));
}

Json LlamaConfig::to_hugging_face(int64_t tokens) const {
  const Family family = family_of(*this);
  Json json = {{"architectures", {fmt::format("{}ForCausalLM", family.name)}},
               {"model_type", family.model_type},
               {"tie_word_embeddings", tie_word_embeddings},
               {"hidden_act", "silu"},
               {"attention_bias", false},
               {"mlp_bias", false},
               {"bos_token_id", nullptr},  // else Llama's own, which are other text here
               {"eos_token_id", nullptr},
               {"torch_dtype", dtype == ScalarType::kFloat64 ? "float64" : "float32"}};
  for (const Number& number : numbers())
    std::visit([&](auto member) { json[std::string(number.key)] = this->*member; }, number.value);
  json["max_position_embeddings"] = std::max(tokens, max_position_embeddings);
  // The spelling of transformers 4, which 5 reads, too.
  const RopeScaling scaling = parse_rope_scaling(rope_parameters, "model.rope_parameters");
  if (!rope_parameters.empty()) json["rope_scaling"] = scaling.to_hugging_face();
  if (scaling.type == RopeScaling::Type::kYarn)
    json["max_position_embeddings"] = scaling.original_max_position_embeddings;
  const bool slides = windows().back() > 0;
  if (!slides) json.erase("sliding_window");
  if (windows_differ()) json["layer_types"] = layer_types;
  if (model_type == ModelType::kLlama) return json;
  if (has_qkv_bias()) json.erase("attention_bias");  // Qwen2 has it of Q, K and V, and no such key
  json.erase("mlp_bias");
  json["use_sliding_window"] = slides;
  // Where this key is missing, sdpa and eager of transformers 4.49 to 4.51 take 4096 for it, and
  // use_sliding_window does not turn that off.
  if (!slides) json["sliding_window"] = nullptr;
  const std::vector<int> places = window_of_layer();
  const auto full = windows_differ() ? std::ranges::find(places, 1) - places.begin() : 0;
  json["max_window_layers"] = slides ? full : num_hidden_layers;  // the first with a window
  return json;
}

}  // namespace distca
