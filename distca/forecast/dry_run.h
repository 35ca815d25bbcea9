#pragma once
// Describes a run without running it (`distca train --dry-run`): its parameters, its ranks, and the
// memory of a worker, in a pipeline of each stage, and of a dedicated server, part by part.
// It needs no peers, makes no weights and writes nothing.
//
//     const DryRun run = dry_run(config, num_workers, {.count = num_workers});
//     fmt::print("{}", dry_run_text(config, num_workers, run));
//     check_memory(run.needed, run.local, memory_limit());  // as a run on the CPU at its start
//
// Any thread may call the functions. Errors: those of check_dry_run() (train/check_run.h).

#include <string>
#include <vector>

#include "distca/config/config.h"
#include "distca/forecast/memory.h"
#include "distca/forecast/memory_peak.h"
#include "distca/forecast/plan_figures.h"

namespace distca {

struct DryRun {
  LocalRanks local;
  std::string batches;             // the batches that memory was counted for, in words
  std::vector<PeakMemory> peaks;   // [local.count] of each rank of this machine
  std::vector<int64_t> in_flight;  // [local.count] the most nano-batches whose activations it keeps
  MemoryParts needed;              // the least that these ranks need together
  BatchPlans plans;                // plans of the first batch
  std::vector<DeviceFacts> devices;  // CUDA devices that are here
  int64_t device_cap_bytes = 0;      // device_cap() (forecast/memory_cap.h)
  PlanFigures first;                 // figures of the first batch's plans
  /// Bytes that these ranks send in the first step: Q, K, V, O and their gradients, and in a
  /// pipeline what goes from stage to stage.
  int64_t sent_bytes = 0;
  /// Bytes of rows that ranks of a server send each other, but for those of the loss.
  int64_t tensor_bytes = 0;
};

/// Plans some batches, and counts the memory of this machine's ranks under its plans. `devices`:
/// CUDA devices that are here, if the run is for such.
DryRun dry_run(const Config& config, int num_workers, LocalRanks local,
               const std::filesystem::path& lengths = {},
               const std::vector<DeviceFacts>& devices = {});

/// Lines for people. The worker of each stage and the server shown are those with the highest peak.
/// Of many stages, the first, the last and those with the highest peaks have a column.
std::string dry_run_text(const Config& config, int num_workers, const DryRun& run);

}  // namespace distca
