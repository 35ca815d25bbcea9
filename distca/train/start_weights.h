#pragma once
// The weights that a run begins with: those of the folder that model.from names
// (model/hugging_face.h), or of the checkpoint that it goes on from, or random ones.
//
//     check_start_weights(config);                                // before anything is written
//     load_start_weights(checkpoint, config, weights, &words);    // on each rank
//
// A model that is not trained takes the weights of a folder without a run:
//
//     load_weights(HuggingFaceWeights(folder, config), model);
//
// Thread rule: one thread.

#include <string>
#include <vector>

#include "distca/checkpoint/reader.h"
#include "distca/model/hugging_face.h"
#include "distca/train/config.h"
#include "distca/train/worker_weights.h"

namespace distca {

/// Throws Error(kCheckpoint) if the folder has not the weights of the model. Without a folder, does
/// nothing.
void check_start_weights(const Config& config);

/// Gives a rank the weights that it begins with, a tensor at a time: those of the checkpoint with
/// the optimizer's state or, without one, those of the folder; without either they stay as drawn.
/// Adds to `words` what was read of a folder.
void load_start_weights(const CheckpointReader* checkpoint, const Config& config,
                        WorkerWeights& weights, std::vector<std::string>* words = nullptr);

/// Gives a model of one stage, whose shape they have, these weights.
void load_weights(const HuggingFaceWeights& weights, const Llama& model);

}  // namespace distca
