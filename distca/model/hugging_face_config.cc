#include <algorithm>
#include <array>
#include <string_view>

#include "distca/base/error.h"
#include "distca/base/json_field.h"
#include "distca/base/text.h"
#include "distca/model/hugging_face.h"
#include "distca/model/rope_scaling.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostSize = int64_t{1} << 40;

/// Keys that decide the shape.
constexpr std::array<std::string_view, 23> kRead = {"model_type",
                                                    "architectures",
                                                    "vocab_size",
                                                    "hidden_size",
                                                    "intermediate_size",
                                                    "num_hidden_layers",
                                                    "num_attention_heads",
                                                    "num_key_value_heads",
                                                    "head_dim",
                                                    "rms_norm_eps",
                                                    "initializer_range",
                                                    "tie_word_embeddings",
                                                    "max_position_embeddings",
                                                    "sliding_window",
                                                    "use_sliding_window",
                                                    "max_window_layers",
                                                    "layer_types",
                                                    "rope_theta",
                                                    "rope_scaling",
                                                    "rope_parameters",
                                                    "quantization_config",
                                                    "hidden_act",
                                                    "auto_map"};

/// Keys on which no training depends: ids of tokens, how text is generated, how a model is loaded
/// and what its outputs are in transformers, and what other programs leave behind.
constexpr std::array<std::string_view, 68> kNoMatter = {"dtype",
                                                        "torch_dtype",
                                                        "transformers_version",
                                                        "_name_or_path",
                                                        "_attn_implementation",
                                                        "_attn_implementation_autoset",
                                                        "attn_implementation",
                                                        "name_or_path",
                                                        "bos_token_id",
                                                        "eos_token_id",
                                                        "pad_token_id",
                                                        "sep_token_id",
                                                        "decoder_start_token_id",
                                                        "forced_bos_token_id",
                                                        "forced_eos_token_id",
                                                        "unk_token_id",
                                                        "use_cache",
                                                        "pretraining_tp",
                                                        "return_dict",
                                                        "return_dict_in_generate",
                                                        "output_attentions",
                                                        "output_hidden_states",
                                                        "output_scores",
                                                        "torchscript",
                                                        "tokenizer_class",
                                                        "prefix",
                                                        "id2label",
                                                        "label2id",
                                                        "problem_type",
                                                        "task_specific_params",
                                                        "finetuning_task",
                                                        "max_length",
                                                        "min_length",
                                                        "do_sample",
                                                        "temperature",
                                                        "top_k",
                                                        "top_p",
                                                        "repetition_penalty",
                                                        "bad_words_ids",
                                                        "begin_suppress_tokens",
                                                        "diversity_penalty",
                                                        "early_stopping",
                                                        "encoder_no_repeat_ngram_size",
                                                        "exponential_decay_length_penalty",
                                                        "length_penalty",
                                                        "no_repeat_ngram_size",
                                                        "num_beam_groups",
                                                        "num_beams",
                                                        "num_return_sequences",
                                                        "remove_invalid_values",
                                                        "suppress_tokens",
                                                        "typical_p",
                                                        "use_bfloat16",
                                                        "tf_legacy_loss",
                                                        "is_decoder",
                                                        "is_llama_config",
                                                        "unsloth_version",
                                                        "unsloth_fixed",
                                                        "unsloth_tiled_mlp",
                                                        "transformers.js_config",
                                                        "max_sequence_length",
                                                        "model_max_length",
                                                        "neftune_noise_alpha",
                                                        "gradient_checkpointing",
                                                        "_commit_hash",
                                                        "_flash_attn_2_enabled",
                                                        "_attn_implementation_internal",
                                                        "keys_to_ignore_at_inference"};

/// Keys that may have this value alone, or be null.
struct Only {
  std::string_view key, value;  // the value is JSON text
};
constexpr std::array<Only, 18> kOnly = {{{"hidden_act", "\"silu\""},
                                         {"attention_bias", "false"},
                                         {"mlp_bias", "false"},
                                         {"attention_dropout", "0"},
                                         {"hidden_dropout", "0"},
                                         {"resid_pdrop", "0"},
                                         {"embd_pdrop", "0"},
                                         {"use_mrope", "false"},
                                         {"rope_interleaved", "false"},
                                         {"pruned_heads", "{}"},
                                         {"partial_rotary_factor", "1"},
                                         {"quantization_config", "null"},
                                         {"auto_map", "null"},
                                         {"is_encoder_decoder", "false"},
                                         {"add_cross_attention", "false"},
                                         {"tie_encoder_decoder", "false"},
                                         {"cross_attention_hidden_size", "null"},
                                         {"chunk_size_feed_forward", "0"}}};

/// The reader of one config.json.
struct Reader {
  const Json& json;
  const std::string file;
  std::vector<std::string>* const notes;
  const JsonField root{json, file, ErrorKind::kConfig};

  bool has(const std::string& key) const { return json.contains(key) && !json.at(key).is_null(); }
  int64_t size(const char* key) const { return root[key].integer(1, kMostSize); }
  double number_or(const char* key, double otherwise) const {
    return has(key) ? root[key].number() : otherwise;
  }
  bool flag(const char* key) const { return has(key) && root[key].flag(); }

  void check_keys() const;
  ModelType family(bool* has_window) const;
  std::vector<bool> sliding_layers(int64_t tokens, bool is_qwen, int64_t layers) const;
  void read_windows(bool may_have_window, bool is_qwen, LlamaConfig* model) const;
  void read_rope(LlamaConfig* model) const;
  LlamaConfig model() const;
};

void Reader::check_keys() const {
  root.expect(json.is_object(), "an object");
  for (const Only& only : kOnly) {
    const std::string key(only.key);
    if (has(key)) root[key].expect(json.at(key) == Json::parse(only.value), only.value);
  }
  for (const auto& [key, value] : json.items()) {
    const bool known = std::ranges::count(kRead, key) > 0 || std::ranges::count(kNoMatter, key) ||
                       std::ranges::count(kOnly, key, &Only::key) > 0;
    if (known) continue;
    DISTCA_THROW_IF(!value.is_null() && value != false, ErrorKind::kConfig,
                    "{}: {} is not known, and it may change the model", file, key);
    if (notes) {
      notes->push_back(fmt::format("{}: {} = {} is not known, and taken for a key that is off",
                                   file, key, value.dump()));
    }
  }
}

ModelType Reader::family(bool* has_window) const {
  struct Family {
    std::string_view name, architecture;
    ModelType type;
  };
  constexpr std::array<Family, 5> kFamilies = {
      {{"llama", "LlamaForCausalLM", ModelType::kLlama},
       {"mistral", "MistralForCausalLM", ModelType::kLlama},
       {"ministral", "MinistralForCausalLM", ModelType::kLlama},
       {"qwen2", "Qwen2ForCausalLM", ModelType::kQwen2},
       {"qwen3", "Qwen3ForCausalLM", ModelType::kQwen3}}};
  const auto found = std::ranges::find(kFamilies, root["model_type"].text(), &Family::name);
  root["model_type"].expect(found != kFamilies.end(), "llama, mistral, ministral, qwen2 or qwen3");
  if (has("architectures")) {
    const Json wanted = Json::array({found->architecture});
    root["architectures"].expect(json["architectures"] == wanted, wanted.dump());
  }
  *has_window = found->name != "llama";
  return found->type;
}

/// [layer] True if the layer has the window of `tokens` tokens. 0 means that there is no window.
std::vector<bool> Reader::sliding_layers(int64_t tokens, bool is_qwen, int64_t layers) const {
  std::vector<bool> slides(layers, tokens > 0);
  if (has("layer_types")) {
    const JsonField types = root["layer_types"];
    types.expect(types.size() == slides.size(), "as long as num_hidden_layers");
    for (size_t i = 0; i < slides.size(); ++i) {
      slides[i] = types.at(i).text() == "sliding_attention";
      types.at(i).expect(types.at(i).text() == "full_attention" || (slides[i] && tokens > 0),
                         tokens > 0 ? "full_attention or sliding_attention"
                                    : "full_attention, because there is no sliding_window");
    }
  } else if (is_qwen && tokens > 0) {
    const int64_t first = root["max_window_layers"].integer(0);
    std::fill_n(slides.begin(), std::min(first, layers), false);
  }
  return slides;
}

void Reader::read_windows(bool may_have_window, bool is_qwen, LlamaConfig* model) const {
  if (has("sliding_window") && !may_have_window)
    root["sliding_window"].expect(false, "null in a Llama");
  const bool used = is_qwen ? flag("use_sliding_window") : may_have_window;
  if (used && !is_qwen) root["sliding_window"];  // transformers has a default, so it must be there
  const int64_t tokens = used && has("sliding_window") ? size("sliding_window") : 0;
  const std::vector<bool> slides = sliding_layers(tokens, is_qwen, model->num_hidden_layers);
  const auto sliding = std::ranges::count(slides, true);
  if (sliding > 0) model->sliding_window = tokens;
  if (sliding == 0 || sliding == model->num_hidden_layers) return;
  for (const bool layer_slides : slides)
    model->layer_types.emplace_back(layer_slides ? "sliding_attention" : "full_attention");
}

void Reader::read_rope(LlamaConfig* model) const {
  bool found = false;
  RopeScaling scaling;
  model->rope_theta = number_or("rope_theta", 10000);
  for (const char* const key : {"rope_parameters", "rope_scaling"}) {
    if (!has(key)) continue;
    const JsonField field = root[key];
    Json rope = json[key];
    field.expect(rope.is_object(), "an object");
    if (rope.contains("rope_theta") && !rope["rope_theta"].is_null()) {
      const double theta = field["rope_theta"].number();
      field["rope_theta"].expect(!has("rope_theta") || theta == model->rope_theta,
                                 "equal to rope_theta");
      model->rope_theta = theta;
    }
    if (rope.contains("partial_rotary_factor"))
      field["partial_rotary_factor"].expect(rope["partial_rotary_factor"] == 1, "1");
    rope.erase("rope_theta");
    rope.erase("partial_rotary_factor");
    const RopeScaling read = read_rope_scaling(rope, fmt::format("{}: {}", file, key),
                                               model->max_position_embeddings, notes);
    field.expect(!found || read == scaling, "the same as rope_parameters");
    scaling = read;
    found = true;
  }
  model->rope_parameters = scaling.text();
}

LlamaConfig Reader::model() const {
  LlamaConfig model;
  bool may_have_window = false;
  model.model_type = family(&may_have_window);
  check_keys();
  const bool is_qwen = model.model_type != ModelType::kLlama;
  model.vocab_size = size("vocab_size");
  model.hidden_size = size("hidden_size");
  model.intermediate_size = size("intermediate_size");
  model.num_hidden_layers = root["num_hidden_layers"].integer(1, LlamaConfig::kMostLayers);
  model.num_attention_heads = size("num_attention_heads");
  // Only Llama's default is as many as query heads.
  const bool is_llama = !may_have_window && !has("num_key_value_heads");
  model.num_key_value_heads = is_llama ? model.num_attention_heads : size("num_key_value_heads");
  if (has("head_dim") || model.model_type == ModelType::kQwen3) {
    model.head_dim = size("head_dim");
  } else {
    root["hidden_size"].expect(model.hidden_size % model.num_attention_heads == 0,
                               "divisible by num_attention_heads where there is no head_dim");
    model.head_dim = model.hidden_size / model.num_attention_heads;
  }
  model.rms_norm_eps = number_or("rms_norm_eps", 1e-6);
  model.initializer_range = number_or("initializer_range", 0.02);
  model.tie_word_embeddings = flag("tie_word_embeddings");
  if (has("max_position_embeddings"))
    model.max_position_embeddings = root["max_position_embeddings"].whole(1, kMostSize);
  read_windows(may_have_window, is_qwen, &model);
  read_rope(&model);
  return model;
}

}  // namespace

LlamaConfig read_hugging_face_config(const fs::path& folder, std::vector<std::string>* notes) {
  const fs::path file = folder / "config.json";
  std::error_code ignored;  // a file that cannot be looked at counts as missing
  DISTCA_THROW_IF(!fs::exists(file, ignored), ErrorKind::kConfig,
                  "{}: no folder of a model: it has no config.json; weights are not downloaded",
                  folder.string());
  return parse_hugging_face_config(read_json(file, ErrorKind::kConfig), file.string(), notes);
}

LlamaConfig parse_hugging_face_config(const Json& json, const std::string& file,
                                      std::vector<std::string>* notes) {
  const LlamaConfig model = Reader{json, file, notes}.model();
  try {
    model.check();
  } catch (const Error& error) {
    throw Error(ErrorKind::kConfig, "{}: {}", file, error.what());
  }
  return model;
}

Json with_keys_of_all_versions(Json json, const LlamaConfig& model) {
  const Json written = model.to_hugging_face(0);
  json.erase("rope_parameters");
  json.erase("rope_scaling");
  for (const char* const key : {"rope_theta", "rope_scaling", "layer_types"})
    if (written.contains(key)) json[key] = written[key];
  if (written["max_position_embeddings"] > 0)
    json["max_position_embeddings"] = written["max_position_embeddings"];
  if (written.contains("sliding_window") && written["sliding_window"].is_null())
    json["sliding_window"] = nullptr;
  return json;
}

}  // namespace distca
