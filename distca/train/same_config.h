#pragma once
// Refuses to train if ranks differ in configuration, profile, data set or environment, which every
// rank reads for itself. Otherwise ranks would wait for each other forever, or train something that
// nobody asked for. Thread rule: as the communicator's.

#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/config/resolved_config.h"

namespace distca {

/// All ranks call it together. If they differ, it throws Error(kConfig) on all of them: one line
/// with the first key, in print order, that is not the same everywhere. For data.prefix, what it
/// holds must be the same, and the message gives each rank's path. For train.trace, it must be the
/// same whether there is a file. train.output_dir, train.overwrite and train.threads_per_rank may
/// differ.
void check_same_config(Communicator& comm, const Config& config, const ResolvedConfig& resolved);

}  // namespace distca
