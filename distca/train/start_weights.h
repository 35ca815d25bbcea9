#pragma once
// The weights that a run begins with: those of the folder that model.from names
// (model/hugging_face.h), or of the checkpoint that it goes on from, or random ones.
//
//     check_start_weights(config);                                // before anything is written
//     read_start_weights(comm, checkpoint, config, weights, words);  // on all ranks together
//
// A model that is not trained takes the weights of a folder without a run:
//
//     load_weights(HuggingFaceWeights(folder, config), model);
//
// Thread rule: one thread.

#include <cstdint>
#include <string>
#include <vector>

#include "distca/checkpoint/reader.h"
#include "distca/config/config.h"
#include "distca/model/hugging_face.h"
#include "distca/train/worker_weights.h"

namespace distca {

/// Throws Error(kCheckpoint) if the folder has not the weights of the model, or is that of a run
/// whose newest weights lie in a checkpoint. Without a folder, does nothing.
void check_start_weights(const Config& config);

/// Gives a rank the weights that it begins with, a tensor at a time: those of the checkpoint with
/// the optimizer's state (load_checkpoint) or, without one, those of the folder; without either
/// they stay as drawn. Adds to `words` what was read of a folder. Returns the folder's fingerprint
/// (HuggingFaceWeights), or 0.
uint64_t load_start_weights(const CheckpointReader* checkpoint, const Config& config,
                            WorkerWeights& weights, std::vector<std::string>* words = nullptr);

/// load_start_weights() of each rank that holds weights, at the pace of its disk, while all ranks
/// wait, and the rest of the weights from other ranks; `weights` is null on others. All ranks call
/// it together. Throws DamagedCheckpoint where what a rank needs of the checkpoint cannot be had,
/// and what check_same_folder() throws.
void read_start_weights(Communicator& comm, const CheckpointReader* checkpoint,
                        const Config& config, WorkerWeights* weights,
                        std::vector<std::string>& words);

/// Throws Error(kConfig) on all ranks, which call it together, if some have read other weights from
/// model.from than the first that has read any. `fingerprint` is what this rank has read, or 0.
void check_same_folder(Communicator& comm, const Config& config, uint64_t fingerprint);

/// Gives a model, or a stage of it, whose shape they have, these weights.
void load_weights(const HuggingFaceWeights& weights, const Llama& model);
/// Likewise those of a checkpoint, without the optimizer's state.
void load_weights(const CheckpointReader& checkpoint, const Llama& model);

}  // namespace distca
