#pragma once
// What a core can reach at best: the rate of independent multiply-adds in registers, measured. The
// limit that figures of the CPU kernel name. Thread rule: any thread; other work beside it shows.

#include "distca/base/scalar_type.h"
#include "distca/kernels/cpu/isa.h"

namespace distca::kernels {

/// GFLOP/s of `threads` threads together, each the fastest of many bursts of a fraction of a
/// millisecond within `seconds` (at least one burst). A multiply-add is 2 FLOP a lane; a dot
/// product of bf16 pairs 4. bf16 with kAvx512Bf16: dot products of pairs; elsewhere fp32
/// multiply-adds, for there the kernel widens. fp64: half of fp32, as vectors hold half as many.
/// `isa` must be available.
double measured_peak_gflops(Isa isa, ScalarType type, double seconds, int threads = 1);

/// One such burst; its FLOP. For callers that keep the clock themselves.
double run_peak_burst(Isa isa, ScalarType type);

}  // namespace distca::kernels
