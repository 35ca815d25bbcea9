#pragma once
// Whose weights are whose in a pipeline: every weight of the model is saved, and brought to rank 0,
// by exactly one stage. Any thread may call these functions.
//
//     for (const KeptWeight& weight : kept_weights(config.model, run)[stage])
//       save(optimizer.state(part, weight.in_stage, elements), names[weight.in_model]);

#include <cstddef>
#include <vector>

#include "distca/config/run_grid.h"
#include "distca/model/weight_table.h"

namespace distca {

struct KeptWeight {
  size_t in_model = 0;  // its place in weight_table(model)
  size_t in_stage = 0;  // and in that of the stage
};

/// The weights that a stage holds, in the order of its table: those that it keeps and, on the last
/// one, its copy of a tied embedding.
std::vector<KeptWeight> held_weights(const LlamaConfig& model, const Stage& stage);
/// [stage] Those that a stage keeps: all that it holds but copies.
std::vector<std::vector<KeptWeight>> kept_weights(const LlamaConfig& model, const RunGrid& run);

}  // namespace distca
