#pragma once
// bfloat16 as a storage format: the upper half of a float32. Conversions round to nearest, ties to
// even; NaN stays NaN. There is no arithmetic: convert to float, compute, and convert back. Any
// thread.

#include <bit>
#include <cmath>
#include <cstdint>

namespace distca::kernels {

/// A number of 16 bits.
struct BFloat16 {
  uint16_t bits = 0;
};

inline float to_float(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

inline BFloat16 to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {static_cast<uint16_t>((bits >> 16) | 0x0040)};
  return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

/// Rounds only once. If the step through float32 arrives at a tie between two bfloat16 numbers, and
/// `x` was not at that tie, the side on which `x` was decides.
inline BFloat16 to_bfloat16(double x) {
  const auto nearest = static_cast<float>(x);
  auto bits = std::bit_cast<uint32_t>(nearest);
  if ((bits & 0xFFFF) == 0x8000 && static_cast<double>(nearest) != x) [[unlikely]] {
    bits += std::fabs(static_cast<double>(nearest)) < std::fabs(x) ? 1 : -1;
  }
  return to_bfloat16(std::bit_cast<float>(bits));
}

}  // namespace distca::kernels
