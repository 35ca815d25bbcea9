#pragma once
// Every rank reads its configuration, profile, data set and environment for itself; this refuses
// to train where they differ: ranks would wait for each other, or train something that nobody asked
// for.

#include <string>

#include "distca/batch/indexed_dataset.h"
#include "distca/comm/communicator.h"
#include "distca/train/config.h"

namespace distca {

/// What a rank made of keys whose words may mean something else on another rank.
struct ResolvedConfig {
  std::string price;   // what plan.profile counts load in (profile_name, or pairs)
  std::string kernel;  // the one that attention.kernel chose
  std::string data;    // what data.prefix holds (data_summary), wherever it lies
  std::string isa;  // instructions that PyTorch computes with (ATEN_CPU_CAPABILITY); "": a device's
};

/// "40 documents, 13,673 tokens, contents 0123456789abcdef".
std::string data_summary(const IndexedDataset& data);

/// All ranks call it together. Error(kConfig) on all of them, in one line, with the first key in
/// print order that not all have alike: of data.prefix what it holds, with each rank's path. Other
/// paths, train.overwrite and train.threads_per_rank may
/// differ; of train.trace whether there is one may not.
void check_same_config(Communicator& comm, const Config& config, const ResolvedConfig& resolved);

}  // namespace distca
