#include "distca/config/model_from.h"

#include <string>
#include <utility>

#include "distca/base/error.h"
#include "distca/model/hugging_face.h"
#include "distca/model/rope_scaling.h"

namespace distca {
namespace {

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
  model = read_hugging_face_config(config.model_from, &config.notes);
  model.dtype = dtype;
  for (const auto& [key, value] : given) {
    DISTCA_THROW_IF(shown_value(*key) != value, ErrorKind::kConfig,
                    "{} = {}, and {}/config.json makes it {}: leave the key out, or model.from",
                    key->name, value, config.model_from, shown_value(*key));
  }
}

}  // namespace distca
