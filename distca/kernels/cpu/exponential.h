#pragma once
// Exponentials, tanh and logarithms of vectors of numbers, without a table and without a library.
// `Simd` is one of simd_*.h. Thread rule: no state.

#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

/// Replaces x by 2^x in kCount vectors. The result is exactly 1 at 0, 0 at -infinity, and NaN at
/// NaN. A polynomial approximates 2^x on [0, 1). It is fitted so that its largest relative error is
/// smallest, with the value 1 at 0. This error is 8.3e-8. With `kCoarse`, for results that are
/// rounded to bf16 (half a step: 2e-3), it is 1.1e-4; that polynomial is exact at 1 too, so that a
/// row with one large score has the sum 1 within rounding. The vectors are computed step by step
/// together, because one after the other they would fill the processor's schedulers with operations
/// that wait for each other.
template <class Simd, bool kCoarse, int kCount>
inline __attribute__((always_inline)) void exp2_all(typename Simd::Vector (&x)[kCount]) {
  using Vector = typename Simd::Vector;
  constexpr int kTerms = kCoarse ? 4 : 6;
  constexpr float kCoefficients[2][6] = {
      {1.8671302134e-03F, 9.0170300187e-03F, 5.5799913321e-02F, 2.4016445010e-01F,
       6.9315131181e-01F, 1.0F},
      {7.8267970160e-02F, 2.2630768232e-01F, 6.9542434752e-01F, 1.0F, 0, 0}};
  Vector f[kCount];
  Vector power[kCount];
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) f[i] = Simd::fraction(x[i]);
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) power[i] = Simd::set(kCoefficients[kCoarse][0]);
#pragma GCC unroll 8
  for (int term = 1; term < kTerms; ++term) {
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      power[i] = Simd::multiply_add(power[i], f[i], Simd::set(kCoefficients[kCoarse][term]));
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) x[i] = Simd::scale_by_power(power[i], x[i]);
}

/// 2^x of one vector, as above.
template <class Simd, bool kCoarse>
inline typename Simd::Vector exp2(typename Simd::Vector x) {
  typename Simd::Vector power[1] = {x};
  exp2_all<Simd, kCoarse>(power);
  return power[0];
}

/// tanh(x). Near 0 it is a polynomial, because 1 - 2 / (1 + e^2x) has no digits left there.
template <class Simd>
inline typename Simd::Vector tanh(typename Simd::Vector x) {
  using Vector = typename Simd::Vector;
  const Vector square = x * x;
  Vector odd = Simd::set(-5.8951578867e-03F);
  odd = Simd::multiply_add(odd, square, Simd::set(2.0795971546e-02F));
  odd = Simd::multiply_add(odd, square, Simd::set(-5.3783830258e-02F));
  odd = Simd::multiply_add(odd, square, Simd::set(1.3331924127e-01F));
  odd = Simd::multiply_add(odd, square, Simd::set(-3.3333298002e-01F));
  odd = Simd::multiply_add(odd * square, x, x);
  // Beyond 10, tanh is 1 in fp32. The order of the operands keeps NaN.
  const Vector bounded = Simd::min(Simd::set(10.0F), Simd::max(Simd::set(-10.0F), x));
  const Vector power = exp2<Simd, false>(bounded * Simd::set(2.8853900818F));
  const Vector one = Simd::set(1.0F);
  const Vector quotient = Simd::set(2.0F) / (one + power);
  return Simd::select(Simd::below(square, Simd::set(0.36F)), odd, one - quotient);
}

/// ln(x) of a normal number x > 0, right to 1e-10; NaN of NaN. It has no branch, so that compilers
/// make vectors of it.
inline double natural_log(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  // The mantissa in [sqrt(1/2), sqrt(2)).
  const uint32_t above = (bits & 0x7FFFFF) > 0x3504F3 ? 1 : 0;
  const int exponent = static_cast<int>((bits >> 23) + above) - 127;
  const double mantissa =
      __builtin_bit_cast(float, (bits & 0x7FFFFF) | (0x3F800000 - (above << 23)));
  // ln m = 2 artanh((m - 1) / (m + 1)), as a series.
  const double s = (mantissa - 1) / (mantissa + 1);
  const double z = s * s;
  const double series =
      1 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * (1.0 / 11 + z / 13)))));
  return exponent * 0.6931471805599453 + 2 * s * series + (x - x);
}

}  // namespace
}  // namespace distca::kernels
