#pragma once
// Checks a run and sets PyTorch up, once in each process before its ranks train.
//
//     check_run(config, num_workers, {.first = 0, .count = num_workers});
//     set_up_process(config);
//     // start the ranks, each of which calls train()

#include <cstdint>

#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/forecast/memory.h"

namespace distca {

/// Checks everything that can be known to be wrong before any rank starts: the data set, the
/// vocabulary, the names of layout and scheduler, and whether this machine's memory suffices for
/// `local`, its ranks; on CUDA the memory of the devices that this process sees, unless there are
/// none. The output directory is checked in run_folder.h. Throws Error; writes nothing. Returns the
/// device_cap() of the local ranks (forecast/memory_cap.h).
int64_t check_run(const Config& config, int num_workers, LocalRanks local);

/// Checks what any verb with ranks needs of a configuration: that a data set is named, and that the
/// device, NCCL and the kernel that it asks for are here. Throws Error.
void check_means(const Config& config);

/// Sets what PyTorch has only once for a process (train.deterministic). Call it before the ranks of
/// the process train.
void set_up_process(const Config& config);

/// The configuration with the smallest cap of all ranks, or none if a rank has none. All ranks
/// call it together.
Config with_device_cap(const Config& config, Communicator& comm, int64_t own_cap);

}  // namespace distca
