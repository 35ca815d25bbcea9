#pragma once
// A model of Hugging Face as a folder holds it: config.json, and its weights in safetensors.
//
//     const LlamaConfig model = read_hugging_face_config("models/small");
//     const HuggingFaceWeights weights("models/small", model);
//     const HuggingFaceWeights::Tensor tensor = weights.at("lm_head.weight");
//
// Whatever would change the model and is not known here is refused by name. Any thread may call
// these functions.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "distca/base/json.h"
#include "distca/checkpoint/safetensors.h"
#include "distca/model/llama_config.h"

namespace distca {

/// The names of weights: of one file, or of the index of several.
inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

/// The shape that config.json of the folder says, in the spelling of transformers 4 or 5, with the
/// default number type. `notes` gets a line for each key that is not known and changes nothing.
/// Throws Error(kConfig) in one line that names the file and the key.
LlamaConfig read_hugging_face_config(const std::filesystem::path& folder,
                                     std::vector<std::string>* notes = nullptr);
/// Reads the contents of such a file likewise; `file` is its name, for errors.
LlamaConfig parse_hugging_face_config(const Json& json, const std::string& file,
                                      std::vector<std::string>* notes = nullptr);
/// Such a file, whose model is `model`, with the one spelling of RoPE, and of a Qwen without a
/// window, that every version of transformers understands alike (LlamaConfig::to_hugging_face).
/// Other keys stay.
Json with_keys_of_all_versions(Json json, const LlamaConfig& model);

/// The weights of a folder: model.safetensors, or the files that model.safetensors.index.json
/// lists. Files are mapped, so a tensor is read from disk when its bytes are touched.
class HuggingFaceWeights {
 public:
  /// Reads what the files say of themselves. Throws Error(kCheckpoint) with the name of a tensor
  /// that is missing, too many, or of another shape than the model's.
  HuggingFaceWeights(const std::filesystem::path& folder, const LlamaConfig& model);

  struct Tensor {
    const StoredTensor& stored;
    std::span<const std::byte> bytes;
  };
  /// A weight of the model's table, by name.
  Tensor at(const std::string& name) const;
  /// Such as "39 tensors in 2 files, bfloat16".
  std::string describe() const;
  /// A hash of all names, types and shapes and of the first, the middle and the last page of
  /// each tensor, by which ranks find that they have read other models. Never 0.
  uint64_t fingerprint() const;

 private:
  struct Place {
    size_t file;
    const SafetensorsHeader::Entry* entry;
  };
  void open(const std::filesystem::path& folder);
  void check(const std::filesystem::path& folder, const LlamaConfig& model);
  Tensor tensor_at(const Place& place) const;

  std::vector<std::filesystem::path> paths_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> places_;  // by name
};

}  // namespace distca
