#pragma once
// Normal numbers whose bits depend on the seed alone: not on the machine's instruction set, nor on
// the mathematical library (whose logarithm differs with it), nor on who draws which of them. Made
// of + - * / and sqrt, which IEEE 754 rounds alike everywhere; compiled without contraction. Any
// thread.

#include <cstdint>
#include <span>

namespace distca {

/// The standard normal quantile of p in (0, 1) to 2 parts in 10^7 (Wichura, AS 241, PPND7).
double normal_quantile(double p);

/// A stream of draws comes in chunks of as many; each is drawn for itself.
inline constexpr int64_t kNormalChunk = int64_t{1} << 16;

/// The first out.size() draws of chunk `chunk` of (seed), mean 0. At most kNormalChunk of them.
void draw_normal_chunk(uint64_t seed, uint64_t chunk, double std_dev, std::span<float> out);

}  // namespace distca
