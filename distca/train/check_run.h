#pragma once
// Checks a run and sets PyTorch up, once in each process before its ranks train.
//
//     check_run(config, num_workers, {.first = 0, .count = num_workers});
//     set_up_process(config);
//     // start the ranks, each of which calls train()

#include <filesystem>
#include <string>
#include <vector>

#include "distca/batch/batch_stream.h"
#include "distca/comm/device_facts.h"
#include "distca/train/config.h"
#include "distca/train/memory.h"
#include "distca/train/plan_request.h"

namespace distca {

/// Checks everything that can be known to be wrong before any rank starts: the data set, the
/// vocabulary, the names of layout and scheduler, and whether this machine's memory suffices for
/// `local`, its ranks; on CUDA the memory of `devices`, those that this process sees, unless there
/// are none. The output directory is checked in run_folder.h. Throws Error; writes nothing. Returns
/// the device_cap() of the local ranks (train/memory_cap.h).
int64_t check_run(const Config& config, int num_workers, LocalRanks local,
                  const std::vector<DeviceFacts>& devices);
/// Checks the run with the devices that this process sees, on the CPU with none.
int64_t check_run(const Config& config, int num_workers, LocalRanks local);

/// The batches that a run trains on, of data that it checks. Throws Error(kConfig) if data.prefix
/// is not set, and Error(kData). To be planned only, documents need no more than their lengths:
/// `lengths`, a JSON list of tokens, then counts in place of data.prefix.
BatchStream checked_batches(const Config& config, const std::filesystem::path& lengths = {});

/// Batches by whose plans a run's memory is predicted.
struct PlannedAhead {
  std::vector<BatchPlan> plans;  // [batches] at least one
  std::string words;             // their name, such as "the first 8 batches of data/stdlib"
  Batch first;                   // the batch of the first plans
};

/// Checks a run that is only to be looked at (train/dry_run.h), and plans its first batches. Data
/// are read if `lengths` is given or data.prefix names what is there; otherwise all documents are
/// taken to have batch.max_document_tokens tokens. No run is refused for its memory or for a GPU
/// that is not here, and train.trace is not tried, since that writes.
PlannedAhead check_dry_run(const Config& config, int num_workers,
                           const std::filesystem::path& lengths);

/// Sets what PyTorch has only once for a process (train.deterministic). Call it before the ranks of
/// the process train.
void set_up_process(const Config& config);

}  // namespace distca
