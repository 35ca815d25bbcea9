#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string_view>
#include <tuple>

#include "distca/model/hugging_face.h"
#include "distca/model/hugging_face_testing.h"

namespace distca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::small_config;
using testing::TestFolder;

LlamaConfig read(const Json& json) {
  const TestFolder folder;
  write_file_atomically(folder / "config.json", json.dump());
  return read_hugging_face_config(folder);
}

Json changed_config(const Json& changes) {
  Json json = small_config();
  json.merge_patch(changes);
  return json;
}

LlamaConfig read_changed(const Json& changes) { return read(changed_config(changes)); }

TEST(hugging_face_config, says_the_shape) {
  const LlamaConfig model = read(small_config());
  EXPECT_EQ(model.vocab_size, 64);
  EXPECT_EQ(model.hidden_size, 32);
  EXPECT_EQ(model.intermediate_size, 48);
  EXPECT_EQ(model.num_hidden_layers, 2);
  EXPECT_EQ(model.num_attention_heads, 4);
  EXPECT_EQ(model.num_key_value_heads, 2);
  EXPECT_EQ(model.head_dim, 8);
  EXPECT_EQ(model.rms_norm_eps, 1e-6);
  EXPECT_EQ(model.rope_theta, 10000);
  EXPECT_EQ(model.rope_parameters, "");
  EXPECT_EQ(model.max_position_embeddings, 4096);
  EXPECT_EQ(model.sliding_window, 0);
  EXPECT_EQ(model.dtype, ScalarType::kFloat32);
  EXPECT_EQ(model.model_type, ModelType::kLlama);
  EXPECT_FALSE(model.tie_word_embeddings);
}

TEST(hugging_face_config, both_spellings_of_transformers_say_the_same) {
  const Json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192},
                       {"rope_type", "llama3"}};
  Json new_rope = llama3;
  new_rope["rope_theta"] = 500000.0;
  const LlamaConfig now = read_changed({{"rope_parameters", new_rope}});
  const LlamaConfig old = read_changed({{"rope_parameters", nullptr},
                                        {"dtype", nullptr},
                                        {"torch_dtype", "bfloat16"},
                                        {"rope_theta", 500000.0},
                                        {"rope_scaling", llama3}});
  EXPECT_EQ(now.rope_theta, 500000);
  EXPECT_EQ(old.rope_theta, now.rope_theta);
  EXPECT_EQ(old.rope_parameters, now.rope_parameters);
  EXPECT_THAT(now.rope_parameters, HasSubstr("llama3"));
  EXPECT_EQ(read_changed({{"rope_scaling", llama3}, {"rope_parameters", new_rope}}).rope_parameters,
            now.rope_parameters);
}

TEST(hugging_face_config, a_length_that_yarn_does_not_say_is_the_models) {
  EXPECT_THAT(read_changed({{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}},
                            {"rope_parameters", nullptr}})
                  .rope_parameters,
              HasSubstr("\"original_max_position_embeddings\":4096"));
}

TEST(hugging_face_config, what_is_missing_is_as_in_transformers) {
  const LlamaConfig model = read_changed({{"rope_parameters", nullptr},
                                          {"head_dim", nullptr},
                                          {"num_key_value_heads", nullptr},
                                          {"rms_norm_eps", nullptr},
                                          {"architectures", nullptr}});
  EXPECT_EQ(model.rope_theta, 10000);
  EXPECT_EQ(model.head_dim, 8);
  EXPECT_EQ(model.num_key_value_heads, 4);
  EXPECT_EQ(model.rms_norm_eps, 1e-6);
}

Json family(const char* type, const char* architecture, const Json& changes) {
  Json json = small_config();
  json.merge_patch({{"model_type", type}, {"architectures", {architecture}}});
  json.merge_patch(changes);
  return json;
}

TEST(hugging_face_config, other_families) {
  const LlamaConfig mistral =
      read(family("mistral", "MistralForCausalLM", {{"sliding_window", 16}}));
  EXPECT_EQ(mistral.model_type, ModelType::kLlama);
  EXPECT_EQ(mistral.sliding_window, 16);
  const Json unused = {
      {"sliding_window", 16}, {"use_sliding_window", false}, {"max_window_layers", 1}};
  const LlamaConfig qwen2 = read(family("qwen2", "Qwen2ForCausalLM", unused));
  EXPECT_EQ(qwen2.model_type, ModelType::kQwen2);
  EXPECT_EQ(qwen2.sliding_window, 0);
  Json used = unused;
  used.merge_patch({{"use_sliding_window", true}, {"max_window_layers", 0}});
  EXPECT_EQ(read(family("qwen3", "Qwen3ForCausalLM", used)).sliding_window, 16);
  used["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(read(family("qwen3", "Qwen3ForCausalLM", used)).sliding_window, 0);
}

TEST(hugging_face_config, what_we_write_is_read_back) {
  for (const ModelType type : {ModelType::kLlama, ModelType::kQwen2, ModelType::kQwen3}) {
    for (const int64_t window : {0, 16}) {
      LlamaConfig model = read_changed(
          {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 1000}}}});
      model.model_type = type;
      model.sliding_window = window;
      const LlamaConfig again = read(model.to_hugging_face(8192));
      EXPECT_EQ(again.model_type, type);
      EXPECT_EQ(again.sliding_window, window);
      EXPECT_EQ(again.rope_parameters, model.rope_parameters);
      EXPECT_EQ(again.rope_theta, 1000);
      EXPECT_EQ(again.max_position_embeddings, 8192);
      EXPECT_EQ(again.num_parameters(), model.num_parameters());
    }
  }
}

TEST(hugging_face_config, a_qwen_without_a_window_says_so) {
  LlamaConfig model = read(small_config());
  EXPECT_FALSE(model.to_hugging_face(0).contains("sliding_window")) << "a Llama never has one";
  for (const ModelType type : {ModelType::kQwen2, ModelType::kQwen3}) {
    model.model_type = type;
    const Json written = model.to_hugging_face(0);
    ASSERT_TRUE(written.contains("sliding_window"));
    EXPECT_TRUE(written["sliding_window"].is_null());
    EXPECT_EQ(written["use_sliding_window"], false);
    EXPECT_EQ(read(written).sliding_window, 0);
    EXPECT_EQ(read(written).to_hugging_face(0), written);
    const Json kept = with_keys_of_all_versions({{"sliding_window", 4096}, {"other", 1}}, model);
    EXPECT_TRUE(kept["sliding_window"].is_null()) << "of a file that init or export keeps";
    EXPECT_EQ(kept["other"], 1);
  }
}

TEST(hugging_face_config, versions_that_read_rope_otherwise_are_named) {
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 1024}};
  Json exact = yarn;
  exact["truncate"] = false;
  const std::string truncate =
      "config.json: truncate = false of yarn is not known to transformers before 4.55, whose "
      "frequencies differ";
  const auto plain = [](const char* name, const char* version) {
    return fmt::format(
        "config.json: rope_scaling of {} is not known to transformers before {}, whose frequencies "
        "are not stretched",
        name, version);
  };
  for (const auto& [type, window, line] : {std::tuple(ModelType::kLlama, 0, std::string()),
                                           {ModelType::kLlama, 16, plain("Mistral", "4.48")},
                                           {ModelType::kQwen2, 0, plain("Qwen2", "4.45")},
                                           {ModelType::kQwen3, 0, ""}}) {
    LlamaConfig model = read(small_config());
    model.model_type = type;
    model.sliding_window = window;
    EXPECT_EQ(model.read_otherwise(), "");
    model.rope_parameters = R"({"rope_type": "linear", "factor": 2})";
    EXPECT_EQ(model.read_otherwise(), line);
    model.rope_parameters = yarn.dump();
    EXPECT_EQ(model.read_otherwise(), line);
    model.rope_parameters = exact.dump();
    EXPECT_EQ(model.read_otherwise(), truncate);
  }
}

TEST(hugging_face_config, versions_that_read_windows_otherwise_are_named) {
  const std::string differ =
      "config.json: layer_types is not known to transformers before 4.53, whose windows differ";
  const std::string but_flash = differ + " where attention is not flash_attention_2";
  const std::string uniform =
      "config.json: sliding_window of Qwen2 is not known to sdpa and eager of transformers 4.42 to "
      "4.45 and 4.48, which see all keys";
  const std::string full = "full_attention", sliding = "sliding_attention";
  for (const auto& [layers, mistral, qwen2, qwen3] :
       {std::tuple(std::vector{full, sliding}, std::string(), but_flash, but_flash),
        {{sliding, full}, "", differ, differ},
        {{sliding, sliding}, "", uniform, ""},
        {{}, "", uniform, ""},
        {{full, full}, "", "", ""}}) {
    LlamaConfig model = read(small_config());
    model.sliding_window = 16;
    model.layer_types = layers;
    EXPECT_EQ(model.read_otherwise(), mistral);
    model.model_type = ModelType::kQwen2;
    EXPECT_EQ(model.read_otherwise(), qwen2);
    model.model_type = ModelType::kQwen3;
    EXPECT_EQ(model.read_otherwise(), qwen3);
  }
  LlamaConfig both = read(small_config());
  both.model_type = ModelType::kQwen2;
  both.sliding_window = 16;
  both.layer_types = {sliding, full};
  both.rope_parameters = R"({"rope_type": "linear", "factor": 2})";
  EXPECT_EQ(both.read_otherwise(),
            "config.json: rope_scaling of Qwen2 is not known to transformers before 4.45, whose "
            "frequencies are not stretched; layer_types is not known to transformers before 4.53, "
            "whose windows differ");
}

TEST(hugging_face_config, keys_without_an_effect_are_taken) {
  const LlamaConfig plain = read(small_config());
  for (const Json& changes : std::vector<Json>{{{"use_mrope", false}},
                                               {{"rope_interleaved", false}},
                                               {{"is_llama_config", true}},
                                               {{"unsloth_version", "2025.1"}},
                                               {{"transformers.js_config", {{"dtype", "q4"}}}},
                                               {{"pruned_heads", Json::object()}},
                                               {{"num_beams", 4}},
                                               {{"resid_pdrop", 0.0}},
                                               {{"max_position_embeddings", 4096.0}}}) {
    EXPECT_EQ(read_changed(changes).to_hugging_face(0), plain.to_hugging_face(0)) << changes;
  }
  Json json = small_config();
  json["new_feature"] = false;
  json["another"] = nullptr;
  std::vector<std::string> notes;
  parse_hugging_face_config(json, "m/config.json", &notes);
  EXPECT_THAT(notes,
              ElementsAre("m/config.json: another = null is not known, and taken for a key that is "
                          "off",
                          "m/config.json: new_feature = false is not known, and taken for a key "
                          "that is off"));
}

TEST(hugging_face_config, yarn_is_written_for_all_versions) {
  const Json yarn = {{"rope_type", "yarn"},
                     {"factor", 4},
                     {"original_max_position_embeddings", 1024},
                     {"rope_theta", 10000.0}};
  const LlamaConfig model = read_changed({{"rope_parameters", yarn}});
  EXPECT_EQ(model.num_positions(), 4096);
  const Json written = model.to_hugging_face(8192);
  EXPECT_EQ(written["max_position_embeddings"], 1024);
  const LlamaConfig again = read(written);
  EXPECT_THAT(again.rope_parameters, HasSubstr("\"original_max_position_embeddings\":1024"));
  EXPECT_EQ(again.num_positions(), 4096);
  const Json init = with_keys_of_all_versions(changed_config({{"rope_parameters", yarn}}), model);
  EXPECT_FALSE(init.contains("rope_parameters"));
  EXPECT_EQ(init["rope_scaling"], written["rope_scaling"]);
  EXPECT_EQ(init["max_position_embeddings"], 1024);
}

struct Refused {
  Json changes;
  const char* message;
};

TEST(hugging_face_config, what_is_not_supported_is_refused_by_name) {
  const std::vector<Refused> cases = {
      {{{"hidden_act", "gelu"}}, "hidden_act must be \"silu\", not \"gelu\""},
      {{{"attention_bias", true}}, "attention_bias must be false, not true"},
      {{{"mlp_bias", true}}, "mlp_bias must be false, not true"},
      {{{"attention_dropout", 0.1}}, "attention_dropout must be 0, not 0.1"},
      {{{"model_type", "gpt2"}}, "model_type must be llama, mistral, ministral, qwen2 or qwen3"},
      {{{"model_type", "mixtral"}}, "model_type must be llama"},
      {{{"architectures", {"LlamaForSequenceClassification"}}},
       "architectures must be [\"LlamaForCausalLM\"], not"},
      {{{"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2}}}},
       "rope_parameters: rope_type must be default, linear, llama3 or yarn, not \"dynamic\""},
      {{{"rope_parameters", {{"rope_type", "longrope"}, {"short_factor", {1, 2}}}}},
       "rope_parameters: rope_type must be default"},
      {{{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "rope_parameters: full_attention is not known"},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
       "rope_parameters.partial_rotary_factor must be 1, not 0.5"},
      {{{"partial_rotary_factor", 0.25}}, "partial_rotary_factor must be 1, not 0.25"},
      {{{"rope_theta", 500.0}}, "rope_parameters.rope_theta must be equal to rope_theta"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}},
       "rope_scaling must be the same as rope_parameters"},
      {{{"head_dim", 12}}, "model.head_dim = 12: must be a multiple of 8"},
      {{{"head_dim", nullptr}, {"num_attention_heads", 6}}, "hidden_size must be divisible by"},
      {{{"num_key_value_heads", 3}}, "is not divisible by model.num_key_value_heads = 3"},
      {{{"quantization_config", {{"bits", 4}}}}, "quantization_config must be null, not"},
      {{{"num_experts", 8}}, "num_experts is not known, and it may change the model"},
      {{{"num_local_experts", 8}}, "num_local_experts is not known"},
      {{{"auto_map", {{"AutoModel", "x.Y"}}}}, "auto_map must be null"},
      {{{"sliding_window", 16}}, "sliding_window must be null in a Llama, not 16"},
      {{{"layer_types", {"full_attention", "sliding_attention"}}},
       "layer_types[1] must be full_attention, because there is no sliding_window"},
      {{{"is_encoder_decoder", true}}, "is_encoder_decoder must be false"},
      {{{"logit_scale", 0.5}}, "logit_scale is not known"},
      {{{"hidden_size", nullptr}}, "hidden_size is missing"},
      {{{"hidden_size", "32"}}, "hidden_size must be an integer"},
      {{{"rms_norm_eps", "small"}}, "rms_norm_eps must be a number"},
      {{{"rms_norm_eps", -1}}, "model.rms_norm_eps = -1: must be at least 0"},
      {{{"rms_norm_eps", 1e308}}, "model.rms_norm_eps = 1e+308: must be at most 1"},
      {{{"initializer_range", -5}}, "model.initializer_range = -5: must be at least 0"},
      {{{"vocab_size", int64_t{1} << 31}}, "model.vocab_size = 2147483648: must be at most"},
      {{{"rope_parameters", {{"rope_theta", 0.5}}}}, "model.rope_theta = 0.5: must be at least 1"},
      {{{"use_mrope", true}}, "use_mrope must be false, not true"},
      {{{"rope_interleaved", true}}, "rope_interleaved must be false, not true"},
  };
  for (const auto& [changes, message] : cases) {
    try {
      read_changed(changes);
      ADD_FAILURE() << changes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig) << changes;
      EXPECT_THAT(error.what(), HasSubstr(message));
      EXPECT_THAT(error.what(), HasSubstr("config.json: "));
    }
  }
}

TEST(hugging_face_config, windows_may_differ_by_layer) {
  const std::vector<std::string> types = {"full_attention", "sliding_attention"};
  const Json qwen = {
      {"sliding_window", 16}, {"use_sliding_window", true}, {"max_window_layers", 1}};
  const Json listed = {{"sliding_window", 16},
                       {"use_sliding_window", true},
                       {"max_window_layers", 28},
                       {"layer_types", {"full_attention", "sliding_attention"}}};
  for (const auto& [type, architecture, changes] : {std::tuple("qwen2", "Qwen2ForCausalLM", qwen),
                                                    {"qwen3", "Qwen3ForCausalLM", listed},
                                                    {"ministral", "MinistralForCausalLM", listed},
                                                    {"mistral", "MistralForCausalLM", listed}}) {
    Json json = family(type, architecture, changes);
    if (std::string_view(type).ends_with("istral")) {
      json.erase("use_sliding_window");
      json.erase("max_window_layers");
    }
    const LlamaConfig model = read(json);
    EXPECT_EQ(model.sliding_window, 16) << type;
    EXPECT_EQ(model.layer_types, types) << type;
    EXPECT_THAT(model.windows(), ElementsAre(0, 16)) << type;
    EXPECT_THAT(model.window_of_layer(), ElementsAre(0, 1)) << type;
    EXPECT_EQ(model.shape(0).attention.mask.window_left, -1);
    EXPECT_EQ(model.shape(1).attention.mask.window_left, 15);
    const Json written = model.to_hugging_face(8192);
    EXPECT_EQ(written["layer_types"], Json({"full_attention", "sliding_attention"}));
    EXPECT_EQ(written.value("max_window_layers", 1), 1) << "what older ones read";
    EXPECT_EQ(read(written).layer_types, types);
    EXPECT_EQ(read(written).model_type, model.model_type);
  }
}

TEST(hugging_face_config, windows_that_do_not_fit_are_refused_by_name) {
  const auto fault = [](Json json, const Json& changes) -> std::string {
    json.merge_patch(changes);
    try {
      read(json);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  const Json mistral =
      family("ministral", "MinistralForCausalLM",
             {{"sliding_window", 16}, {"layer_types", {"full_attention", "sliding_attention"}}});
  EXPECT_EQ(fault(mistral, Json::object()), "nothing");
  EXPECT_THAT(fault(mistral, {{"layer_types", {"full_attention"}}}),
              HasSubstr("layer_types must be as long as num_hidden_layers"));
  EXPECT_THAT(fault(mistral, {{"layer_types", {"full_attention", "chunked_attention"}}}),
              HasSubstr("layer_types[1] must be full_attention or sliding_attention"));
  Json none = mistral;
  none["sliding_window"] = nullptr;
  EXPECT_THAT(fault(none, Json::object()),
              HasSubstr("layer_types[1] must be full_attention, because"));
  const Json unused = {{"use_sliding_window", false}};
  Json qwen = family("qwen2", "Qwen2ForCausalLM", unused);
  qwen["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_THAT(fault(qwen, Json::object()),
              HasSubstr("layer_types[0] must be full_attention, because"));
}

}  // namespace
}  // namespace distca
