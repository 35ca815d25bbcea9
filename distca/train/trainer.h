#pragma once
// The training loop of one rank: batches, plans, steps, held-out loss, metrics, weights at the end.
// Files of a run: run_folder.h.

#include "distca/comm/communicator.h"
#include "distca/train/config.h"
#include "distca/train/run_state.h"

namespace distca {

/// Everything that can be known to be wrong before any rank starts: data set, vocabulary, names of
/// layout and scheduler; but for the output directory (run_folder.h). Throws Error; writes nothing.
/// `holds_weights`: some rank of this machine is a worker.
void check_run(const Config& config, int num_workers, bool holds_weights);

/// Settings of PyTorch that a process has only once (train.deterministic). Call it before the
/// process's ranks train.
void set_up_process(const Config& config);

/// Trains; all ranks call it with the same configuration. The last servers.dedicated ranks hold no
/// weights and only serve attention. Rank 0 writes the run's files and shows progress on stdout,
/// which nobody waits for, and keeps `state` up to date; on other ranks it is not touched. Throws
/// Error(kComm) when a rank is lost.
void train(const Config& config, Communicator& comm, RunState& state);

}  // namespace distca
