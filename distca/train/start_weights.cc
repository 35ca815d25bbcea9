#include "distca/train/start_weights.h"

#include <ATen/ATen.h>

#include <cstring>

#include "distca/comm/aten_types.h"
#include "distca/model/hugging_face.h"
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

}  // namespace distca
