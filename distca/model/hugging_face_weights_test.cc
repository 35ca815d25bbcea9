#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distca/model/hugging_face.h"
#include "distca/model/hugging_face_testing.h"
#include "distca/model/weight_table.h"

namespace distca {
namespace {

using ::testing::HasSubstr;
using testing::TestFolder;
using testing::write_tensors;

LlamaConfig small() {
  return {.vocab_size = 16,
          .hidden_size = 8,
          .intermediate_size = 16,
          .num_hidden_layers = 2,
          .num_attention_heads = 1,
          .num_key_value_heads = 1,
          .head_dim = 8};
}

std::vector<StoredTensor> tensors_of(const LlamaConfig& model) {
  std::vector<StoredTensor> tensors;
  for (const Weight& weight : weight_table(model))
    tensors.push_back({.name = weight.name, .type = ScalarType::kBFloat16, .shape = weight.shape});
  return tensors;
}

/// Returns the error of opening the folder, or "" if there is none.
std::string fault(const std::filesystem::path& folder, const LlamaConfig& model) {
  try {
    HuggingFaceWeights(folder, model);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
    return error.what();
  }
  return "";
}

TEST(hugging_face_weights, of_one_file) {
  const TestFolder folder;
  std::vector<StoredTensor> tensors = tensors_of(small());
  tensors.push_back({.name = "model.layers.0.self_attn.rotary_emb.inv_freq", .shape = {4}});
  write_tensors(folder / "model.safetensors", tensors, 7);
  const HuggingFaceWeights weights(folder, small());
  EXPECT_EQ(weights.describe(), "21 tensors in 1 file, bfloat16");
  const auto norm = weights.at("model.norm.weight");
  EXPECT_EQ(norm.stored.shape, std::vector<int64_t>{8});
  EXPECT_EQ(norm.bytes.size(), 16u);
  EXPECT_EQ(norm.bytes[3], std::byte{7});
}

TEST(hugging_face_weights, of_several_files) {
  const TestFolder folder;
  std::vector<StoredTensor> first = tensors_of(small());
  const std::vector<StoredTensor> second(first.begin() + 5, first.end());
  first.resize(5);
  const std::string names[] = {"model-00001-of-00002.safetensors",
                               "model-00002-of-00002.safetensors"};
  write_tensors(folder / names[0], first, 1);
  write_tensors(folder / names[1], second, 2);
  Json map;
  for (const StoredTensor& tensor : first) map[tensor.name] = names[0];
  for (const StoredTensor& tensor : second) map[tensor.name] = names[1];
  const auto write_index = [&](const Json& weight_map) {
    write_file_atomically(folder / "model.safetensors.index.json",
                          Json{{"weight_map", weight_map}}.dump());
  };
  write_index(map);
  const HuggingFaceWeights weights(folder, small());
  EXPECT_EQ(weights.describe(), "21 tensors in 2 files, bfloat16");
  EXPECT_EQ(weights.at("model.embed_tokens.weight").bytes[0], std::byte{1});
  EXPECT_EQ(weights.at("lm_head.weight").bytes[0], std::byte{2});
  map["lm_head.weight"] = names[0];
  write_index(map);
  EXPECT_THAT(fault(folder, small()), HasSubstr("has no tensor lm_head.weight, which"));
  map["lm_head.weight"] = "../" + names[1];
  write_index(map);
  EXPECT_THAT(fault(folder, small()), HasSubstr("must be the name of a file in this folder"));
  map["lm_head.weight"] = "absent.safetensors";
  write_index(map);
  EXPECT_THAT(fault(folder, small()), HasSubstr("absent.safetensors"));
  write_tensors(folder / "absent.safetensors", {second.back()});
  EXPECT_THAT(fault(folder, small()), HasSubstr("lm_head.weight is in"));
}

TEST(hugging_face_weights, another_model_has_another_fingerprint) {
  const TestFolder folder;
  const auto fingerprint = [&](ScalarType type, char fill) {
    std::vector<StoredTensor> tensors = tensors_of(small());
    for (StoredTensor& tensor : tensors) tensor.type = type;
    write_tensors(folder / "model.safetensors", tensors, fill);
    return HuggingFaceWeights(folder, small()).fingerprint();
  };
  const uint64_t first = fingerprint(ScalarType::kFloat32, 1);
  EXPECT_EQ(fingerprint(ScalarType::kFloat32, 1), first);
  EXPECT_NE(fingerprint(ScalarType::kFloat32, 2), first);
  EXPECT_NE(fingerprint(ScalarType::kBFloat16, 1), first);
  fingerprint(ScalarType::kFloat32, 1);
  std::string file = read_file(folder / "model.safetensors");
  ++file.back();
  write_file_atomically(folder / "model.safetensors", file);
  EXPECT_NE(HuggingFaceWeights(folder, small()).fingerprint(), first) << "one row was trained";
}

TEST(hugging_face_weights, what_is_wrong_is_named) {
  const TestFolder folder;
  EXPECT_THAT(fault(folder, small()), HasSubstr("holds neither model.safetensors nor"));
  std::vector<StoredTensor> tensors = tensors_of(small());
  const auto fault_of = [&] {
    write_tensors(folder / "model.safetensors", tensors);
    return fault(folder, small());
  };
  tensors.push_back({.name = "model.layers.0.mlp.gate_proj.bias", .shape = {16}});
  EXPECT_THAT(fault_of(), HasSubstr("model.layers.0.mlp.gate_proj.bias is superfluous"));
  tensors.push_back({.name = "score.weight", .shape = {16}});
  EXPECT_THAT(fault_of(),
              HasSubstr("model.layers.0.mlp.gate_proj.bias and 1 other tensor are superfluous"));
  tensors.resize(tensors.size() - 3);
  EXPECT_THAT(fault_of(), HasSubstr("lm_head.weight is missing"));
  tensors.resize(tensors.size() - 2);
  EXPECT_THAT(fault_of(),
              HasSubstr("model.layers.1.mlp.down_proj.weight and 2 other tensors are missing"));
  tensors = tensors_of(small());
  tensors[1].shape = {4};
  EXPECT_THAT(fault_of(), HasSubstr("model.layers.0.input_layernorm.weight has the shape [4], and "
                                    "config.json makes it [8]"));
}

TEST(hugging_face_weights, a_tied_head_may_be_there_if_it_is_the_embedding) {
  const TestFolder folder;
  LlamaConfig model = small();
  write_tensors(folder / "model.safetensors", tensors_of(model));
  model.tie_word_embeddings = true;
  EXPECT_EQ(fault(folder, model), "");
  AtomicFile file(folder / "model.safetensors");
  const std::vector<StoredTensor> tensors = tensors_of(small());
  file.write(safetensors_header(tensors, {}));
  char fill = 0;
  for (const StoredTensor& tensor : tensors)
    file.write(std::string(static_cast<size_t>(tensor.bytes()), fill++));
  file.commit();
  EXPECT_THAT(fault(folder, model), HasSubstr("lm_head.weight is not the embedding"));
}

}  // namespace
}  // namespace distca
