#pragma once
// Refuses to train if ranks differ in configuration, profile, data set or environment, which every
// rank reads for itself. Otherwise ranks would wait for each other forever, or train something that
// nobody asked for. Thread rule: as the communicator's.

#include <cstdint>
#include <string>

#include "distca/comm/communicator.h"
#include "distca/train/config.h"

namespace distca {

/// Values that a rank derived from keys whose words may mean something else on another rank.
struct ResolvedConfig {
  std::string price;   // the unit of loads: profile_name of plan.profile, or pairs
  std::string kernel;  // the one that attention.kernel chose
  std::string data;    // the contents of data.prefix (DataBlend::summary), wherever it lies
  /// The instructions that PyTorch computes with (ATEN_CPU_CAPABILITY); "" on a device.
  std::string isa;
  std::string checkpoint = "none";  // the one that the run goes on from, wherever it lies
};

/// All ranks call it together. If they differ, it throws Error(kConfig) on all of them: one line
/// with the first key, in print order, that is not the same everywhere. For data.prefix, what it
/// holds must be the same, and the message gives each rank's path. For train.trace, it must be the
/// same whether there is a file. train.output_dir, train.overwrite and train.threads_per_rank may
/// differ.
void check_same_config(Communicator& comm, const Config& config, const ResolvedConfig& resolved);

}  // namespace distca
