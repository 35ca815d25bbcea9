#pragma once
// The shape of a run's model where the key model.from names a folder of Hugging Face
// (model/hugging_face.h) or, to be evaluated, a checkpoint of a run. load_config calls it. Any
// thread.

#include <vector>

#include "distca/config/config.h"

namespace distca {

/// Lets the folder decide the shape of the model, if there is one. Throws Error(kConfig) if a key
/// of [model] was given another value, or if config.json says something that is not supported.
/// `keys` point into `config`. Puts model.rope_parameters into one spelling in any case.
void take_model_from(Config& config, const std::vector<ConfigKey>& keys);

}  // namespace distca
