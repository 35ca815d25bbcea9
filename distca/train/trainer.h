#pragma once
// The training loop of one rank: batches, plans, steps, validation loss, metrics, weights at the
// end. Files of a run: run_folder.h.

#include "distca/comm/communicator.h"
#include "distca/train/config.h"
#include "distca/train/run_state.h"

namespace distca {

/// Trains; all ranks call it with the same configuration. The last servers.dedicated ranks hold no
/// weights and only serve attention. Rank 0 writes the run's files and shows progress on stdout,
/// which nobody waits for, and keeps `state` up to date; on other ranks it is not touched. Throws
/// Error(kComm) when a rank is lost.
void train(const Config& config, Communicator& comm, RunState& state);

}  // namespace distca
