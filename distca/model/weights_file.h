#pragma once
// A model's weights as one file under Hugging Face's names.
//
//     AtomicFile file("model.safetensors");
//     write_weights(file, model.config(), model.parameters(), {{"steps", "100"}});
//     file.commit();
//
// Thread rule: one thread a model.

#include <vector>

#include "distca/checkpoint/safetensors.h"
#include "distca/model/llama.h"

namespace distca {

/// The weights as files hold them: in the type of the main params, in the order of the weight
/// table.
std::vector<StoredTensor> stored_weights(const LlamaConfig& config);
/// Returns the weights of a stage of a pipeline likewise.
std::vector<StoredTensor> stored_weights(const LlamaConfig& config, const Stage& stage);

/// Writes the weights, which are in the order and of the types of stored_weights(), but does not
/// commit the file. Throws Error(kIo).
void write_weights(AtomicFile& file, const LlamaConfig& config,
                   const std::vector<at::Tensor>& weights, const SafetensorsMetadata& metadata);

}  // namespace distca
