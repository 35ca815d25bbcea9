#pragma once
// Whose weights are whose where ranks divide the model: every element of every weight is saved, and
// brought to rank 0, by exactly one stage, and there by one index in tensor parallelism. Any thread
// may call these functions.
//
//     for (const KeptWeight& weight : kept_weights(config.model, run.stage_of(rank)))
//       save(optimizer.state(part, weight.in_stage, elements), names[weight.in_model]);

#include <cstddef>
#include <vector>

#include "distca/model/weight_table.h"
#include "distca/program/program.h"

namespace distca {

struct KeptWeight {
  size_t in_model = 0;  // its place in weight_table(model)
  size_t in_stage = 0;  // and in that of the stage
};

/// The weights that a rank with this stage keeps, or its part of them, in the order of the table:
/// all but the last stage's copy of a tied embedding, and what a rank of a lower index in tensor
/// parallelism holds, too.
std::vector<KeptWeight> kept_weights(const LlamaConfig& model, const Stage& stage);
/// All weights that the rank holds. Under ZeRO-1, it keeps a slice of each, also of what others
/// hold.
std::vector<KeptWeight> kept_slices(const LlamaConfig& model, const Stage& stage);

}  // namespace distca
