#include "distca/model/weights_file.h"

#include <ATen/ATen.h>

#include "distca/base/error.h"
#include "distca/comm/host_read.h"
#include "distca/program/program.h"

namespace distca {

std::vector<StoredTensor> stored_weights(const LlamaConfig& config) {
  return stored_weights(config, whole_model(config));
}

std::vector<StoredTensor> stored_weights(const LlamaConfig& config, const Stage& stage) {
  const bool is_double = config.dtype == ScalarType::kFloat64;
  std::vector<StoredTensor> stored;
  for (const Weight& weight : weight_table(config, stage)) {
    stored.push_back({.name = weight.name,
                      .type = is_double ? ScalarType::kFloat64 : ScalarType::kFloat32,
                      .shape = weight.shape});
  }
  return stored;
}

void write_weights(AtomicFile& file, const LlamaConfig& config,
                   const std::vector<at::Tensor>& weights, const SafetensorsMetadata& metadata) {
  const std::vector<StoredTensor> stored = stored_weights(config);
  file.write(safetensors_header(stored, metadata));
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor host = host_copy(weights[i]).contiguous();
    DISTCA_CHECK_EQ(static_cast<int64_t>(host.nbytes()), stored[i].bytes());
    file.write(std::span(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()));
  }
}

}  // namespace distca
