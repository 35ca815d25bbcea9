#include "distca/train/stage_weights.h"

#include <map>
#include <string>

namespace distca {

std::vector<KeptWeight> held_weights(const LlamaConfig& model, const Stage& stage) {
  std::map<std::string, size_t> in_model;  // by name
  for (const Weight& weight : weight_table(model)) in_model.emplace(weight.name, in_model.size());
  std::vector<KeptWeight> held;
  for (const Weight& weight : weight_table(model, stage))
    held.push_back({.in_model = in_model.at(weight.name), .in_stage = held.size()});
  return held;
}

std::vector<std::vector<KeptWeight>> kept_weights(const LlamaConfig& model, const RunGrid& run) {
  std::vector<std::vector<KeptWeight>> kept(run.grid.stages);
  for (int stage = 0; stage < run.grid.stages; ++stage) {
    const Stage of = run.stage_of(run.grid.rank(stage, 0));
    const std::vector<Weight> table = weight_table(model, of);
    for (const KeptWeight& weight : held_weights(model, of)) {
      if (!table[weight.in_stage].is_copy()) kept[stage].push_back(weight);
    }
  }
  return kept;
}

}  // namespace distca
