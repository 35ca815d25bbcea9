#pragma once
// Plays the program of one rank's step on paper: every operation takes and gives back the bytes
// that train/nano_phases.h or, where ranks divide phases, train/tensor_nano_phases.h,
// train/stage_p2p.h, model/ and runtime/ take and give back in it, in the order in which the
// executor plays them. Any thread may call the function.
//
//     const MemoryParts standing = standing_memory(config, workers, local);
//     const PeakMemory peak = peak_of_step(config, program, standing, multiprocessors);

#include <vector>

#include "distca/config/config.h"
#include "distca/forecast/memory.h"
#include "distca/forecast/memory_peak.h"
#include "distca/program/program.h"

namespace distca {

/// The bytes of all tensors while an operation is played.
struct HeldInOp {
  const Op* op = nullptr;  // one of the program's; null before the first
  bool lands = false;      // rows that it receives come in, later than it stands in the list
  double most = 0;
  double after = 0;  // until the next operation
};

/// The moment of the step in which the tensors take most, on top of what stands in memory: exchange
/// buffers, which stand during every operation, count as far as `standing` has them. A run of no
/// steps plays nothing. `multiprocessors`: of a CUDA device; nothing else reads it. `held`, unless
/// it is null, gets each operation that takes or gives back bytes, in the order of the executor.
PeakMemory peak_of_step(const Config& config, const Program& program, const MemoryParts& standing,
                        int64_t multiprocessors, std::vector<HeldInOp>* held = nullptr);

}  // namespace distca
