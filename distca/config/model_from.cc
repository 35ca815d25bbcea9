#include "distca/config/model_from.h"

#include <string>
#include <system_error>
#include <utility>

#include "distca/base/error.h"
#include "distca/checkpoint/index.h"
#include "distca/model/hugging_face.h"
#include "distca/model/rope_scaling.h"

namespace distca {
namespace {

/// The file that says the shape: a checkpoint's index, where the folder is one.
std::filesystem::path shape_file(const std::filesystem::path& folder) {
  std::error_code ignored;
  const bool is_checkpoint = std::filesystem::exists(folder / kIndexFile, ignored);
  return folder / (is_checkpoint ? kIndexFile : "config.json");
}

LlamaConfig read_shape(const std::filesystem::path& folder, std::vector<std::string>* notes) {
  const std::filesystem::path file = shape_file(folder);
  if (file.filename() != kIndexFile) return read_hugging_face_config(folder, notes);
  return parse_hugging_face_config(read_checkpoint_index(folder).hugging_face, file.string(),
                                   notes);
}

/// Keys of [model] that say how a run computes, not what its model is.
bool is_of_the_run(const std::string& key) { return key == "model.from" || key == "model.dtype"; }

}  // namespace

void take_model_from(Config& config, const std::vector<ConfigKey>& keys) {
  LlamaConfig& model = config.model;
  model.rope_parameters = parse_rope_scaling(model.rope_parameters, "model.rope_parameters").text();
  if (config.model_from.empty()) return;
  std::vector<std::pair<const ConfigKey*, std::string>> given;
  for (const ConfigKey& key : keys) {
    if (key.given && key.name.starts_with("model.") && !is_of_the_run(key.name))
      given.emplace_back(&key, shown_value(key));
  }
  const ScalarType dtype = model.dtype;
  model = read_shape(config.model_from, &config.notes);
  model.dtype = dtype;
  for (const auto& [key, value] : given) {
    DISTCA_THROW_IF(shown_value(*key) != value, ErrorKind::kConfig,
                    "{} = {}, and {} makes it {}: leave the key out, or model.from", key->name,
                    value, shape_file(config.model_from).string(), shown_value(*key));
  }
}

}  // namespace distca
