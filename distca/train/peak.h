#pragma once
// What the ranks' cores can reach at best: the limit that a step's rate is compared with.

#include <string>

#include "distca/comm/communicator.h"
#include "distca/train/config.h"

namespace distca {

struct ComputePeak {
  double flops_per_s = 0;  // of all ranks together, measured while all work at once; ranks that
                           // share cores count once
  std::string of;          // what was measured
};

/// Where our own attention kernel runs, multiply-adds in registers (kernels/cpu/peak.h); else
/// PyTorch's matrix product. All ranks call it together; takes about 0.2 s.
ComputePeak measure_peak(const Config& config, Communicator& comm);

}  // namespace distca
