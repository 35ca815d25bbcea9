#pragma once
// Every rank reads its configuration, profile and environment for itself; this refuses to train
// where they differ: ranks would wait for each other, or train something that nobody asked for.

#include <string>

#include "distca/comm/communicator.h"
#include "distca/train/config.h"

namespace distca {

/// What a rank made of keys whose words may mean something else on another rank.
struct ResolvedConfig {
  std::string price;   // what plan.profile counts load in (profile_name, or pairs)
  std::string kernel;  // the one that attention.kernel chose
};

/// All ranks call it together. Error(kConfig) on all of them, in one line, with the first key in
/// print order that not all have alike. Paths, train.overwrite and train.threads_per_rank may
/// differ; of train.trace whether there is one may not.
void check_same_config(Communicator& comm, const Config& config, const ResolvedConfig& resolved);

}  // namespace distca
