#pragma once
// The state that a run ends in when it cannot go on: it is saved, and what it is good for is said.
// Thread rule: all ranks call the function together.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/train/checkpoint_saver.h"

namespace distca {

struct LastState {
  int64_t step = 0;              // the weights are those after it; 0 if there is nothing to save
  bool before_bad_step = false;  // the next one was bad, so perhaps the weights are spoilt
  bool all_bad = false;  // no step since the checkpoint that this start went on from was good
  std::filesystem::path goes_on_from;  // that checkpoint; empty for a new run
  std::vector<at::Tensor> weights;     // weights of this rank
  std::function<void()> begin_save;
};

/// Saves the state unless it is saved or not finite. Removes no older checkpoint. Gives what is to
/// be said, the same on all ranks: "; the state after step 41 is saved, --resume goes on from it",
/// and from which older checkpoint a run can go on if that state is spoilt.
std::string save_last_state(const LastState& last, const Config& config, CheckpointSaver& saver,
                            Communicator& comm);

/// The line on a run that `by`, a signal or a key, ended after `step`: "stopped by SIGTERM after
/// step 41 of 100; saved, resume with ...". Throws Error(kIo) unless its state is `saved`.
std::string stopped_early(const Config& config, const std::string& by, int64_t step, bool saved);

}  // namespace distca
