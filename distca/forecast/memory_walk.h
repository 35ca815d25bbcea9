#pragma once
// Plays the program of one rank's step on paper: every operation takes and gives back the bytes
// that train/nano_phases.h or, where ranks divide phases, train/tensor_nano_phases.h,
// train/stage_p2p.h, model/ and runtime/ take and give back in it, in the order in which the
// executor plays them. Any thread may call the function.
//
//     const PeakMemory peak = peak_of_step(config, program, standing_memory(config, workers,
//     local));

#include <vector>

#include "distca/config/config.h"
#include "distca/forecast/memory.h"
#include "distca/forecast/memory_peak.h"
#include "distca/kernels/varlen_memory.h"
#include "distca/program/program.h"

namespace distca {

/// The moment of the step in which the tensors take most, on top of what stands in memory. Exchange
/// buffers, which stand during every operation, are not counted. A run of no steps plays nothing.
/// `multiprocessors`: of a CUDA device; nothing else reads it.
PeakMemory peak_of_step(const Config& config, const Program& program, const MemoryParts& standing,
                        int64_t multiprocessors = kernels::FlashDevice().multiprocessors);

/// The bytes of all tensors while an operation is played.
struct HeldInOp {
  const Op* op = nullptr;  // one of the program's; null before the first
  bool lands = false;      // rows that it receives come in, later than it stands in the list
  double most = 0;
  double after = 0;  // until the next operation
};
/// Lists each operation that takes or gives back bytes, in the order of the executor, on top of
/// what stands: the largest `most` is peak_of_step()'s. `standing` may have buffers, too.
std::vector<HeldInOp> held_in_ops(const Config& config, const Program& program,
                                  const MemoryParts& standing,
                                  int64_t multiprocessors = kernels::FlashDevice().multiprocessors);

}  // namespace distca
