#include "distca/train/start_weights.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cstring>

#include "distca/comm/aten_types.h"
#include "distca/train/checkpoint_saver.h"

namespace distca {
namespace {

at::Tensor tensor_of(const HuggingFaceWeights::Tensor& tensor) {
  const auto& [stored, bytes] = tensor;
  // A copy: nothing says that what lies in a file is aligned.
  at::Tensor host = at::empty(stored.shape, stored.is_float16 ? at::kHalf : aten_type(stored.type));
  std::memcpy(host.data_ptr(), bytes.data(), bytes.size());
  return host;
}

}  // namespace

void check_start_weights(const Config& config) {
  if (!config.model_from.empty()) HuggingFaceWeights(config.model_from, config.model);
}

void load_start_weights(const CheckpointReader* checkpoint, const Config& config,
                        WorkerWeights& weights, std::vector<std::string>* words) {
  if (checkpoint) {
    load_checkpoint(*checkpoint, config.model, weights.model.stage(), weights.optimizer);
    return;
  }
  if (config.model_from.empty()) return;
  const HuggingFaceWeights stored(config.model_from, config.model);
  const std::vector<Weight>& table = weights.model.weights();
  for (size_t i = 0; i < table.size(); ++i)
    weights.optimizer.load(StatePart::kWeight, i, tensor_of(stored.at(table[i].name)));
  if (words) {
    words->push_back(
        fmt::format("starting from the weights of {}: {}", config.model_from, stored.words()));
  }
}

void load_weights(const HuggingFaceWeights& weights, const Llama& model) {
  const c10::AutoGradMode no_grad(false);
  for (size_t i = 0; i < model.weights().size(); ++i)
    model.parameters()[i].copy_(tensor_of(weights.at(model.weights()[i].name)));
  model.refresh_copies();
}

}  // namespace distca
