#include "distca/train/stage_weights.h"

#include <map>
#include <string>

namespace distca {

std::vector<KeptWeight> kept_weights(const LlamaConfig& model, const Stage& stage) {
  const std::vector<Weight> table = weight_table(model, stage);
  std::vector<KeptWeight> kept = kept_slices(model, stage);
  std::erase_if(kept, [&](const KeptWeight& kept_weight) {
    const Weight& weight = table[kept_weight.in_stage];
    return weight.is_copy() || weight.holders.begin != stage.tensor.index;
  });
  return kept;
}

std::vector<KeptWeight> kept_slices(const LlamaConfig& model, const Stage& stage) {
  std::map<std::string, size_t> in_model;  // by name
  for (const Weight& weight : weight_table(model)) in_model.emplace(weight.name, in_model.size());
  const std::vector<Weight> table = weight_table(model, stage);
  std::vector<KeptWeight> kept;
  for (size_t i = 0; i < table.size(); ++i)
    kept.push_back({.in_model = in_model.at(table[i].name), .in_stage = i});
  return kept;
}

}  // namespace distca
