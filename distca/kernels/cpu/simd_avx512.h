#pragma once
// AVX-512 for the kernel templates (product.h, forward.h, backward.h): 16 lanes. The operations are
// those of simd_avx2.h and simd_portable.h. Only for units compiled for AVX-512: everything here is
// local to the unit.

#include <immintrin.h>

#include <cstdint>

#include "distca/kernels/cpu/word.h"

namespace distca::kernels {
namespace {

struct Avx512 {
  using Vector = __m512;
  using Integers = __m512i;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  // One product: as many accumulators as the 32 registers hold beside the operands.
  static constexpr int kProductRows = 13;
  static constexpr int kProductVectors = 2;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector set(float x) { return _mm512_set1_ps(x); }
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vector x) { _mm512_storeu_ps(p, x); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  /// a * b + c, rounded once.
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  /// To the nearest integer, halves to even.
  static Vector round(Vector x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  /// x * 2^n for an integer n; underflows to denormals or 0.
  static Vector scale_by_power(Vector x, Vector n) { return _mm512_scalef_ps(x, n); }

  static Integers set_integer(int32_t x) { return _mm512_set1_epi32(x); }
  static Integers load_integers(const int32_t* p) { return _mm512_loadu_si512(p); }
  /// Lanes where a <= b.
  static Mask at_most(Integers a, Integers b) { return _mm512_cmple_epi32_mask(a, b); }
  static Mask both(Mask a, Mask b) { return a & b; }
  static Vector select(Mask mask, Vector yes, Vector no) {
    return _mm512_mask_blend_ps(mask, no, yes);
  }
};

/// Operands of a product in fp32: a word is one number.
struct Avx512Fp32 : Avx512 {
  static constexpr bool kPairs = false;
  /// accumulator + broadcast(*a) * b.
  static Vector multiply_word(const Word* a, Vector b, Vector accumulator) {
    return _mm512_fmadd_ps(_mm512_set1_ps(*reinterpret_cast<const float*>(a)), b, accumulator);
  }
  static Vector load_words(const Word* p) { return _mm512_loadu_ps(p); }
};

#ifdef __AVX512BF16__
/// Operands in bf16: a word is a pair of numbers that are neighbours along the sum.
struct Avx512Bf16 : Avx512 {
  static constexpr bool kPairs = true;
  static Vector multiply_word(const Word* a, Vector b, Vector accumulator) {
    return _mm512_dpbf16_ps(accumulator, (__m512bh)_mm512_set1_epi32(static_cast<int32_t>(*a)),
                            (__m512bh)_mm512_castps_si512(b));
  }
  static Vector load_words(const Word* p) { return _mm512_loadu_ps(p); }
  /// Words of two rows of fp32 rounded to bf16: `first` in the low halves.
  static Integers pair(Vector first, Vector second) {
    const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(second, first);  // first: low 16 numbers
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, rounded);
  }
  static void store_words(Word* p, Integers x) { _mm512_storeu_si512(p, x); }
};
#endif

}  // namespace
}  // namespace distca::kernels
