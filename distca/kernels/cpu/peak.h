#pragma once
// Measures the highest rate that a core can reach: that of independent multiply-adds in registers.
// Figures of the CPU kernel are compared with it. Thread rule: any thread may call these functions,
// but other work at the same time lowers the result.

#include "distca/base/scalar_type.h"
#include "distca/kernels/cpu/isa.h"

namespace distca::kernels {

/// GFLOP/s of `threads` threads together. Each thread's rate is that of its fastest burst; bursts
/// take a fraction of a millisecond, and are repeated for `seconds` (at least one).
/// Counts: 2 FLOP for a multiply-add of a lane, and 4 for a dot product of pairs of bf16 numbers.
/// bf16 is measured with dot products for kAvx512Bf16, and elsewhere with fp32 multiply-adds,
/// because there the kernel widens it. fp64 counts as half of fp32, because a vector holds half as
/// many numbers. `isa` must be available.
double measured_peak_gflops(Isa isa, ScalarType type, double seconds, int threads = 1);

/// Runs one such burst and returns its FLOP, for callers that measure the time themselves.
double run_peak_burst(Isa isa, ScalarType type);

}  // namespace distca::kernels
