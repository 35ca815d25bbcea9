#pragma once
// Measures, before the first step, the highest rate at which the ranks' cores or devices can
// compute, with which the rate of a training step is compared, and on a CUDA device what
// train.deterministic costs attention.

#include "distca/comm/communicator.h"
#include "distca/config/config.h"
#include "distca/report/run_summary.h"

namespace distca {

/// Tokens of the document with which rank 0 measures what deterministic attention costs, before the
/// others go on. 0 means that it does not measure it.
int64_t deterministic_probe_tokens(const Config& config);

/// Rows and columns of the matrices that a peak is measured with. On a CUDA device they are so
/// large that a product takes far longer than its launch. `cuda_device` is -1 for the CPU.
int64_t peak_product_size(int cuda_device);

/// FLOP/s of PyTorch's product of two random size x size matrices. It is the fastest of at least
/// three rounds, which take about `seconds` after a warm-up. It includes the wait for the device.
/// `cuda_device` is -1 for the CPU.
double matrix_product_rate(ScalarType type, int cuda_device, int64_t size, double seconds);

/// Measures multiply-adds in registers (kernels/cpu/peak.h) if our own kernel computes attention,
/// and PyTorch's matrix product otherwise. All ranks call it together. It takes about 0.2 s, on a
/// CUDA device about a second. One of the threads that share a CUDA device measures it for all.
/// With deterministic attention on a CUDA device, rank 0 also measures its price, while the others
/// wait for it.
ComputePeak measure_peak(const Config& config, Communicator& comm);

}  // namespace distca
