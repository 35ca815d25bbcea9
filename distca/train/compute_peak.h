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

/// Rows and columns of the matrices that a peak is measured with: on a CUDA device so large that a
/// product takes far longer than its launch.
int64_t peak_product_size(int cuda_device);

/// FLOP/s of PyTorch's product of two random size x size matrices, the fastest of at least three
/// rounds in about `seconds`, after a warm-up; the device's work is waited for. `cuda_device`: -1 =
/// CPU.
double matrix_product_rate(ScalarType type, int cuda_device, int64_t size, double seconds);

/// Where our own attention kernel runs, multiply-adds in registers (kernels/cpu/peak.h); else
/// PyTorch's matrix product. All ranks call it together; takes about 0.2 s, on a
/// CUDA device rather a second. Of threads that share a CUDA device one measures it.
ComputePeak measure_peak(const Config& config, Communicator& comm);

}  // namespace distca
