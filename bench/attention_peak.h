#pragma once
// The multiply-add loop (kernels/cpu/peak.h) as a contender. Thread rule of bench/rounds.h.

#include <span>

#include "bench/rounds.h"
#include "distca/kernels/cpu/peak.h"

namespace distca::bench {

/// On the calling thread.
Contender peak_loop(kernels::Isa isa, ScalarType type, Clock clock);
/// On each of `cores` at once, which must outlive the contender, for about `seconds`, in wall-clock
/// time: from the moment that all threads are ready until the last has ended.
Contender parallel_peak_loop(kernels::Isa isa, ScalarType type, std::span<const int> cores,
                             double seconds);

}  // namespace distca::bench
