#include "distca/model/weights_file.h"

#include <ATen/ATen.h>

namespace distca {

std::vector<StoredTensor> stored_weights(const LlamaConfig& config) {
  const bool is_double = config.dtype == ScalarType::kFloat64;
  std::vector<StoredTensor> stored;
  for (const Weight& weight : weight_table(config)) {
    stored.push_back({.name = weight.name,
                      .type = is_double ? ScalarType::kFloat64 : ScalarType::kFloat32,
                      .shape = weight.shape});
  }
  return stored;
}

void write_weights(AtomicFile& file, const Llama& model, const SafetensorsMetadata& metadata) {
  file.write(safetensors_header(stored_weights(model.config()), metadata));
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor host = parameter.detach().cpu().contiguous();
    file.write(std::span(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()));
  }
}

}  // namespace distca
