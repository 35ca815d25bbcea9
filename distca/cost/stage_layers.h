#pragma once
// The layers of a model that each stage of a pipeline has. Any thread may call the functions.

#include <cstdint>
#include <vector>

#include "distca/base/integers.h"
#include "distca/cost/memory_price.h"

namespace distca {

/// Multiply-adds of a token in the matrix products of one layer, and in those of the head. Core
/// attention is left out.
int64_t layer_products(const ModelShape& model);
/// Multiply-adds of a layer's token in the projections of Q, K, V, and in that of O.
int64_t projection_products(const ModelShape& model);
int64_t output_products(const ModelShape& model);
int64_t head_products(const ModelShape& model);
/// Multiply-adds of a layer's products that backward computes again, under Recompute::kFull. Where
/// ranks divide layers, they are those of gate and up, and the projections' only if homes do not
/// keep Q, K, V (`keys_travel_again`, as in llama_memory) or norm Q and K.
int64_t products_again(const ModelShape& model, Recompute recompute, bool keys_travel_again);

/// [stage] The layers of a model, divided so that the matrix products of the stages are as even as
/// can be, with the head on the last one; every stage has at least one layer. Of equal divisions,
/// earlier stages have more. Core attention does not count, since a pipeline pools that of all
/// stages. `stages` must be 1 to model.num_layers (CHECK).
std::vector<Range> even_stages(const ModelShape& model, int stages);

}  // namespace distca
