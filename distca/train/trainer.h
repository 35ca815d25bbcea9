#pragma once
// The training loop of one rank: batches, plans, steps, validation loss, metrics, and the weights
// at the end. run_folder.h says which files a run writes.

#include "distca/comm/communicator.h"
#include "distca/train/config.h"
#include "distca/train/run_state.h"

namespace distca {

/// Trains. All ranks call it with the same configuration. The last servers.dedicated ranks hold no
/// weights and only compute attention. Rank 0 writes the files of the run, shows progress on stdout
/// without waiting for a reader, and keeps `state` up to date; other ranks leave `state` untouched.
/// Throws Error(kComm) if a rank is lost, and Error(kTraining) if the run diverges.
void train(const Config& config, Communicator& comm, RunState& state);

}  // namespace distca
