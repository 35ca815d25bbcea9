#pragma once
// Multiply-adds without memory, by which peak.h measures a core. Only for sources that are compiled
// for one instruction set.

#include <cstdint>

#include "distca/kernels/cpu/engine.h"
#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

constexpr int64_t kBurstSteps = 20'000;  // a burst takes some 50 to 150 us

/// Sums that do not wait for each other: as many as a product has, because they hide its latency,
/// too, and leave registers for the operands.
template <class Simd>
constexpr int kBurstSums = Simd::kProductRows* Simd::kProductVectors;

/// Burst::run. In fp32, sums converge to term / (1 - factor); those of pairs grow to at most
/// kBurstSteps * 2 * factor * term: no overflow, no denormals. They start apart: the compiler would
/// compute equal ones once.
template <class Simd>
float run_burst(float factor, float term) {
  using Vector = typename Simd::Vector;
  Vector sums[kBurstSums<Simd>];
  for (int i = 0; i < kBurstSums<Simd>; ++i) sums[i] = Simd::set(term * static_cast<float>(i));
  Vector y = Simd::set(term);
  if constexpr (Simd::kPairs) y = Simd::neighbours(y, y);
  const Vector x = Simd::set(factor);
  const Word bits = __builtin_bit_cast(uint32_t, factor);
  const Word pair = bits >> 16 | (bits & 0xFFFF0000U);
  for (int64_t step = 0; step < kBurstSteps; ++step) {
#pragma GCC unroll 32
    for (Vector& sum : sums) {
      if constexpr (Simd::kPairs) {
        sum = Simd::multiply_word(&pair, y, sum);
      } else {
        sum = Simd::multiply_add(sum, x, y);
      }
    }
  }
  Vector total = Simd::zero();
  for (const Vector& sum : sums) total = total + sum;
  float lanes[Simd::kLanes];
  Simd::store(lanes, total);
  return lanes[0];
}

/// A multiply-add of a lane is 2 FLOP, a dot product of pairs 4.
template <class Simd>
constexpr Burst burst_of() {
  constexpr int kFlops = kBurstSums<Simd> * Simd::kLanes * (Simd::kPairs ? 4 : 2);
  return {run_burst<Simd>, static_cast<double>(kBurstSteps * kFlops)};
}

}  // namespace
}  // namespace distca::kernels
