#pragma once
// Normally distributed random numbers whose bits depend on the seed alone. They do not depend on
// the machine's instruction set, on the mathematical library (whose logarithms differ), or on which
// thread draws which numbers. They are made of + - * / and sqrt, which IEEE 754 rounds alike
// everywhere, and the source is compiled without contraction. Any thread may call these functions.

#include <cstdint>
#include <span>

namespace distca {

/// The quantile of the standard normal distribution at p, where 0 < p < 1, to 2 parts in 10^7
/// (Wichura, algorithm AS 241, PPND7).
double normal_quantile(double p);

/// Numbers in a chunk. A stream of random numbers consists of chunks, and each chunk can be drawn
/// independently of the others.
inline constexpr int64_t kNormalChunk = int64_t{1} << 16;

/// Fills `out` with the first out.size() numbers of chunk number `chunk` of the stream of `seed`.
/// Their mean is 0. `out` may have at most kNormalChunk numbers.
void draw_normal_chunk(uint64_t seed, uint64_t chunk, double std_dev, std::span<float> out);

}  // namespace distca
