#pragma once
// What is done once in a process before its ranks train.

#include "distca/train/config.h"
#include "distca/train/memory.h"

namespace distca {

/// Everything that can be known to be wrong before any rank starts: data set, vocabulary, names of
/// layout and scheduler, memory for `local`, the ranks of this machine; but for the output
/// directory (run_folder.h). Throws Error; writes nothing.
void check_run(const Config& config, int num_workers, LocalRanks local);

/// Settings of PyTorch that a process has only once (train.deterministic). Call it before the
/// process's ranks train.
void set_up_process(const Config& config);

}  // namespace distca
