#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "distca/base/error.h"
#include "distca/base/hash.h"
#include "distca/base/json_field.h"
#include "distca/base/text.h"
#include "distca/model/hugging_face.h"
#include "distca/model/weight_table.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHead = "lm_head.weight";

/// Tables of RoPE, which old versions of transformers saved and everybody computes again.
bool is_computed(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

}  // namespace

HuggingFaceWeights::HuggingFaceWeights(const fs::path& folder, const LlamaConfig& model) {
  open(folder);
  check(folder, model);
}

void HuggingFaceWeights::open(const fs::path& folder) {
  std::map<std::string, std::string> index;  // the file of each tensor, by its name
  if (std::error_code ignored; fs::exists(folder / kWeightsFile, ignored)) {
    paths_ = {folder / kWeightsFile};
  } else {
    const fs::path file = folder / kWeightsIndex;
    DISTCA_THROW_IF(!fs::exists(file, ignored), ErrorKind::kCheckpoint,
                    "{}: holds neither {} nor {}: weights are read from safetensors alone",
                    folder.string(), kWeightsFile, kWeightsIndex);
    const Json json = read_json(file, ErrorKind::kCheckpoint);
    const std::string place = file.string();
    const JsonField map = JsonField(json, place, ErrorKind::kCheckpoint)["weight_map"];
    map.expect(json["weight_map"].is_object() && !json["weight_map"].empty(),
               "an object of tensors");
    std::set<std::string> names;
    for (const auto& [tensor, name] : json["weight_map"].items()) {
      index[tensor] = map[tensor].text();
      map[tensor].expect(fs::path(index[tensor]).filename() == index[tensor],
                         "the name of a file in this folder");
      names.insert(index[tensor]);
    }
    for (const std::string& name : names) paths_.push_back(folder / name);
  }
  for (const fs::path& path : paths_) files_.emplace_back(path);
  for (size_t file = 0; file < files_.size(); ++file) {
    for (const SafetensorsHeader::Entry& entry : files_[file].tensors()) {
      if (is_computed(entry.tensor.name)) continue;
      const auto [other, is_new] = places_.try_emplace(entry.tensor.name, Place{file, &entry});
      DISTCA_THROW_IF(!is_new, ErrorKind::kCheckpoint, "{}: {} is in {}, too",
                      paths_[file].string(), entry.tensor.name,
                      paths_[other->second.file].string());
    }
  }
  for (const auto& [tensor, name] : index) {
    const auto place = places_.find(tensor);
    DISTCA_THROW_IF(!is_computed(tensor) &&
                        (place == places_.end() || paths_[place->second.file].filename() != name),
                    ErrorKind::kCheckpoint, "{}: has no tensor {}, which {} says is there",
                    (folder / name).string(), tensor, kWeightsIndex);
  }
}

void HuggingFaceWeights::check(const fs::path& folder, const LlamaConfig& model) {
  std::set<std::string> wanted;
  std::vector<std::string> missing;
  for (const Weight& weight : weight_table(model)) {
    wanted.insert(weight.name);
    const auto place = places_.find(weight.name);
    if (place == places_.end()) {
      missing.push_back(weight.name);
      continue;
    }
    const std::vector<int64_t>& shape = place->second.entry->tensor.shape;
    DISTCA_THROW_IF(shape != weight.shape, ErrorKind::kCheckpoint,
                    "{}: {} has the shape [{}], and config.json makes it [{}]",
                    paths_[place->second.file].string(), weight.name, fmt::join(shape, ", "),
                    fmt::join(weight.shape, ", "));
  }
  const auto are = [](const std::vector<std::string>& names) {
    return names.size() == 1 ? names[0] + " is"
                             : fmt::format("{} and {} other tensor{} are", names[0],
                                           names.size() - 1, names.size() == 2 ? "" : "s");
  };
  DISTCA_THROW_IF(!missing.empty(), ErrorKind::kCheckpoint,
                  "{}: {} missing: the model that config.json describes has more weights than "
                  "these files",
                  folder.string(), are(missing));
  // Some tied models are saved with the same weights under both names.
  if (const auto head = places_.find(kHead); model.tie_word_embeddings && head != places_.end()) {
    const auto [stored, bytes] = tensor_at(head->second);
    const auto [embedding, same] = at("model.embed_tokens.weight");
    DISTCA_THROW_IF(!std::ranges::equal(bytes, same) || stored.type != embedding.type,
                    ErrorKind::kCheckpoint,
                    "{}: {} is not the embedding, and tie_word_embeddings in config.json is true",
                    paths_[head->second.file].string(), kHead);
    wanted.insert(kHead);
  }
  std::vector<std::string> superfluous;
  for (const auto& [name, place] : places_)
    if (!wanted.contains(name)) superfluous.push_back(name);
  DISTCA_THROW_IF(!superfluous.empty(), ErrorKind::kCheckpoint,
                  "{}: {} superfluous: the model that config.json describes has no such weights",
                  paths_[places_.at(superfluous[0]).file].string(), are(superfluous));
}

HuggingFaceWeights::Tensor HuggingFaceWeights::tensor_at(const Place& place) const {
  return {place.entry->tensor, files_[place.file].bytes(*place.entry)};
}

HuggingFaceWeights::Tensor HuggingFaceWeights::at(const std::string& name) const {
  return tensor_at(places_.at(name));
}

std::string HuggingFaceWeights::describe() const {
  std::set<std::string> types;
  for (const auto& [name, place] : places_) types.insert(place.entry->tensor.type_name());
  return fmt::format("{} tensors in {} file{}, {}", with_thousands(std::ssize(places_)),
                     files_.size(), files_.size() == 1 ? "" : "s", fmt::join(types, " and "));
}

uint64_t HuggingFaceWeights::fingerprint() const {
  constexpr size_t kPage = 4096;
  std::vector<uint64_t> hashes;
  for (const auto& [name, place] : places_) {
    const auto [stored, bytes] = tensor_at(place);
    const std::string said =
        fmt::format("{} {} {}", name, stored.type_name(), fmt::join(stored.shape, " "));
    hashes.push_back(hash_words(std::as_bytes(std::span(said))));
    const size_t last = bytes.size() - std::min(kPage, bytes.size());
    for (const size_t begin : {size_t{0}, last / 2, last})
      hashes.push_back(hash_words(bytes.subspan(begin, std::min(kPage, bytes.size()))));
  }
  return std::max<uint64_t>(1, hash_words(std::as_bytes(std::span(hashes))));
}

}  // namespace distca
