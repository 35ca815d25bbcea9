#pragma once
// The training loop of one rank: batches, plans, steps, validation loss, metrics, checkpoints, and
// the weights at the end. run_folder.h says which files a run writes.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "distca/base/clock.h"
#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/report/run_state.h"

namespace distca {

/// How a run begins.
struct RunStart {
  /// The checkpoint that the run goes on from, or nothing for a new run. Rank 0's counts.
  std::optional<std::filesystem::path> checkpoint;
  /// On rank 0, chooses what the run goes on from if a checkpoint, whose step is given, is damaged.
  /// If this is null, a damaged checkpoint ends the run.
  std::function<std::optional<std::filesystem::path>(int64_t)> older_checkpoint;
  std::string run_id;            // id of the launch; rank 0 draws one if it is ""
  int64_t device_cap_bytes = 0;  // result of check_run()
  /// When the run was launched, on the clock of steady_seconds(), for train.exit_duration_in_mins.
  /// Rank 0's counts.
  double begin_s = steady_seconds();
};

/// How a run has ended.
struct TrainEnd {
  int stopped_by = 0;  // the signal after which it saved and ended, or 0 if none
  std::string words;   // on rank 0, what is to be said if not all steps are done
};

/// Trains. All ranks call it with the same configuration. The last servers.dedicated ranks hold no
/// weights and only compute attention. Rank 0 writes the files of the run, shows progress on stdout
/// without waiting for a reader, and keeps `state` up to date; ranks that are threads may share it.
/// If a signal was noted in the `state` of any rank, all ranks save a checkpoint after the step
/// that is under way, and end. The same happens when train.exit_duration_in_mins leaves no time for
/// another step; then the run also measures and writes what one does that has done all steps.
/// Throws Error(kComm) if a rank is lost, and Error(kTraining) if the run diverges.
TrainEnd train(const Config& config, Communicator& comm, RunState& state,
               const RunStart& start = {});

}  // namespace distca
